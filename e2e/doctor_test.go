package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvsteer/kvsteer/internal/doctor"
	"github.com/kvsteer/kvsteer/internal/lab"
)

// diagnose runs kvsteer doctor and returns its exit status and report.
func diagnose(t *testing.T, config string, flags ...string) (int, doctor.Report) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binaries.kvsteer, append([]string{"doctor", "--json", "--config", config}, flags...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	var r doctor.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || errs.Len() > 0 {
		t.Fatalf("%v\n%s%s", err, &out, &errs)
	}
	return cmd.ProcessState.ExitCode(), r
}

// requireFindings wants a report with these codes alone.
func requireFindings(t *testing.T, when string, status int, r doctor.Report, want ...doctor.Code) {
	t.Helper()
	var got []doctor.Code
	for _, f := range r.Findings {
		if !slices.Contains(got, f.Code) {
			got = append(got, f.Code)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) || (status == 0) != r.Sound() || status > 1 {
		t.Errorf("%s: exit status %d, codes %v, want %v: %+v", when, status, got, want, r.Findings)
	}
}

// TestDoctor looks at a site as it is shipped, where it finds nothing, and then at the same site with one thing broken after the other.
func TestDoctor(t *testing.T) {
	onBothEnvoys(t, func(t *testing.T, release string) {
		t.Parallel()
		site := startSite(t, release, lab.SiteOptions{
			Pools: []lab.PoolOptions{
				{Name: "chat", Model: "sim", Engines: 2, Args: quick, Match: "{host: chat.test}", Replay: true},
				{Name: "other", Model: "sim2", Engines: 1, Args: quick, Match: "{host: other.test}", Dial: true, Replay: true},
			},
		})
		client := site.Client()
		defer client.Close()
		connected := func() bool {
			n, err := lab.Metric(t.Context(), site.RouterAdmin+"/metrics", "kvsteer_subscriber_connected")
			return err == nil && n == 3
		}
		eventually(t, "the engines are connected", connected)
		for range 3 {
			if r := client.Chat(t.Context(), lab.ChatRequest{Model: "sim", Host: "chat.test", MaxTokens: 4, Messages: []lab.Message{{Role: "user", Content: strings.Repeat("Say it again. ", 30)}}}); !r.OK() {
				t.Fatalf("%+v", r)
			}
		}
		status, r := diagnose(t, site.Config, "--probe")
		requireFindings(t, "as shipped", status, r)
		if len(r.NotChecked) > 0 {
			t.Errorf("not looked at: %+v", r.NotChecked)
		}

		text, err := os.ReadFile(site.Config)
		if err != nil {
			t.Fatal(err)
		}
		changed := func(old, replacement string) string {
			t.Helper()
			if !strings.Contains(string(text), old) {
				t.Fatalf("%s does not hold %q", site.Config, old)
			}
			path := filepath.Join(t.TempDir(), "kvsteer.yaml")
			if err := os.WriteFile(path, bytes.ReplaceAll(text, []byte(old), []byte(replacement)), 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}
		status, r = diagnose(t, changed("models: [sim]", "models: [Sim]"))
		requireFindings(t, "another served name", status, r, doctor.NameDiffers, doctor.NameUnlisted)
		status, r = diagnose(t, changed("\nenvoy: {", "\nbudget: 1500ms\nenvoy: {message_timeout: 2s, "))
		requireFindings(t, "a budget that Envoy's configuration does not know", status, r, doctor.TimeoutShort)
		status, r = diagnose(t, changed("address: "+site.Engines[0].Address, "address: 127.0.0.9:1"))
		requireFindings(t, "another address", status, r, doctor.EngineSilent, doctor.EndpointNotInEnvoy, doctor.EndpointOnlyEnvoy, doctor.OtherConfig)

		site.Engines[1].Kill()
		eventually(t, "the router knows of the end", func() bool { return !connected() })
		status, r = diagnose(t, site.Config)
		requireFindings(t, "an engine that was killed", status, r, doctor.EngineSilent)

		site.Router.Kill()
		eventually(t, "Envoy knows of the router's end", func() bool {
			status, r = diagnose(t, site.Config, "--ignore", string(doctor.EngineSilent))
			return slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool { return f.Code == doctor.RouterUnreachable })
		})
		requireFindings(t, "a router that was killed", status, r, doctor.RouterUnreachable, doctor.RouterSilent)

		site.Envoy.Kill()
		status, r = diagnose(t, site.Config, "--ignore", string(doctor.EngineSilent))
		requireFindings(t, "nothing but an engine", status, r, doctor.EnvoySilent, doctor.RouterSilent)
	})
}

// TestDoctorLayouts holds that the layout for any release is sound on both, and that the one for 1.40 is not on 1.37.
func TestDoctorLayouts(t *testing.T) {
	for _, tt := range []struct {
		release, printed string
		want             []doctor.Code
	}{
		{envoyNewest, envoyOldest, nil},
		{envoyOldest, envoyNewest, []doctor.Code{doctor.LayoutWrong}},
	} {
		t.Run(tt.printed+" on "+tt.release, func(t *testing.T) {
			t.Parallel()
			site := startSite(t, tt.release, lab.SiteOptions{EnvoyVersion: tt.printed, Pools: []lab.PoolOptions{{Name: "chat", Model: "sim", Engines: 1, Args: quick, Replay: true}}})
			status, r := diagnose(t, site.Config)
			requireFindings(t, "as printed", status, r, tt.want...)
		})
	}
}

// TestDoctorForeign looks at somebody else's Envoy with our pieces in it: engines over TLS, a cluster of its own as the fallback, and
// routes that are none of our business.
func TestDoctorForeign(t *testing.T) {
	onForeign(t, func(t *testing.T, release, layout string) {
		t.Parallel()
		site := startSite(t, release, foreignOptions(t, layout, quick))
		status, r := diagnose(t, site.Config, "--probe")
		requireFindings(t, "as merged", status, r)
		if len(r.NotChecked) > 0 {
			t.Errorf("not looked at: %+v", r.NotChecked)
		}
	})
}
