package envoy_test

import (
	"fmt"
	"strings"

	"github.com/kvsteer/kvsteer/envoy"
)

func ExampleRender() {
	config, err := envoy.Render(envoy.Options{
		Routers: []string{"unix:/run/kvsteer/extproc.sock"},
		Version: "1.40.0",
		Pools:   []envoy.Pool{{Name: "chat", Endpoints: []string{"10.0.0.11:8000", "10.0.0.12:8000"}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, line := range strings.Split(string(config), "\n") {
		if strings.HasPrefix(line, "  - name: ") {
			fmt.Println(strings.TrimSpace(line))
		}
	}
	// Output:
	// - name: kvsteer
	// - name: kvsteer_pool_chat
	// - name: kvsteer_pick
	// - name: kvsteer_pick_2
	// - name: kvsteer_fallback_chat
	// - name: kvsteer_router
}

func ExampleOptions_Validate() {
	fmt.Println(envoy.Options{
		Admin: "0.0.0.0:9901",
		Pools: []envoy.Pool{{Name: "chat", Endpoints: []string{"gpu1:8000"}}},
	}.Validate())
	// Output:
	// admin: "0.0.0.0:9901": want a loopback address, as 127.0.0.1:9901: Envoy's admin interface asks nobody for a key and can stop Envoy
	// pools[0].endpoints[0]: "gpu1:8000": want ip:port or [ip6]:port with a port from 1 to 65535; a host name is not resolved here
}
