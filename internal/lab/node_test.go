package lab

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNodeText(t *testing.T) {
	dir := t.TempDir()
	n := &Node{lab: &Lab{opt: Options{Dir: dir}}, name: "node-1", Addr: "127.0.0.1:19001", Admin: "http://127.0.0.1:19002"}
	for _, p := range []PoolOptions{{Name: "chat", Model: "a"}, {Name: "code", Model: "b"}} {
		for _, address := range []string{"127.0.0.1:20001", "127.0.0.1:20002"} {
			n.follow(&Engine{Address: address}, p, `listen: "tcp://127.0.0.1:20003"`)
		}
	}
	want := `name: node-1
listen: "127.0.0.1:19001"
admin: {listen: "127.0.0.1:19002", write: true}
state_dir: "` + filepath.Join(dir, "node-1-state") + `"
window: 5ms
pools:
- name: chat
  models: [a]
  engines:
  - {address: "127.0.0.1:20001", events: {listen: "tcp://127.0.0.1:20003"}}
  - {address: "127.0.0.1:20002", events: {listen: "tcp://127.0.0.1:20003"}}
- name: code
  models: [b]
  engines:
  - {address: "127.0.0.1:20001", events: {listen: "tcp://127.0.0.1:20003"}}
  - {address: "127.0.0.1:20002", events: {listen: "tcp://127.0.0.1:20003"}}
`
	if diff := cmp.Diff(want, n.text("window: 5ms")); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	if len(n.Engines) != 4 {
		t.Errorf("%d engines, want 4", len(n.Engines))
	}
	if got, want := watched([]*Node{n, n}), `nodes: [{address: "127.0.0.1:19001"}, {address: "127.0.0.1:19001"}]`; got != want {
		t.Errorf("the router's part is %q, want %q", got, want)
	}
	if got := watched(nil); got != "" {
		t.Errorf("without nodes the router's part is %q", got)
	}
}
