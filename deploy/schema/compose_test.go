package schema

import (
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// load reads the compose file as docker compose does: schema, references between services, files and networks.
func load(t *testing.T, file string) (*types.Project, error) {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{file}, cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	return options.LoadProject(t.Context())
}

func TestCompose(t *testing.T) {
	p, err := load(t, "../compose/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	names := p.ServiceNames()
	slices.Sort(names)
	if got, want := strings.Join(names, " "), "engine-1 engine-2 envoy grafana node-1 node-2 prometheus router-1 router-2"; got != want {
		t.Errorf("services %s, want %s", got, want)
	}
	for name, s := range p.Services {
		if s.Image == "" || s.Privileged {
			t.Errorf("%s: image %q, privileged %v", name, s.Image, s.Privileged)
		}
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s publishes port %d on %q", name, port.Target, port.HostIP)
			}
		}
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeBind && !v.ReadOnly {
				t.Errorf("%s may write to %s", name, v.Source)
			}
		}
	}
}
