package doctor

import (
	"context"
	"strings"

	"github.com/kvsteer/kvsteer/envoy"
)

// envoyFacts is what Envoy's admin listener says.
type envoyFacts struct {
	url                    string
	info, config, clusters reply

	release string // such as 1.40.0; "" when it was not told
	dump    *dump  // nil when it was not read
}

// readEnvoy asks Envoy.
func (d *Doctor) readEnvoy(ctx context.Context) envoyFacts {
	f := envoyFacts{url: strings.TrimSuffix(d.opt.Envoy, "/")}
	if f.url == "" {
		return f
	}
	get := func(path string, limit int64) reply { return d.clients.envoy.get(ctx, f.url+path, "", limit) }
	f.info = get("/server_info", maxReply)
	f.release = release(f.info.tree().text("version"))
	if f.release == "" {
		return f
	}
	f.config = get("/config_dump", maxDump)
	f.clusters = get("/clusters?format=json", maxDump)
	if t := f.config.tree(); len(t.list("configs")) > 0 {
		f.dump = newDump(t, f.clusters.tree())
	}
	return f
}

// release finds it in revision/1.40.0/Clean/RELEASE/BoringSSL.
func release(version string) string {
	parts := strings.Split(version, "/")
	if len(parts) < 3 {
		return ""
	}
	return parts[1]
}

// minorComposite is the release of Envoy 1 from which a composite cluster skips members without a host.
const minorComposite = "1.40"

// examineEnvoy judges Envoy.
func (f *facts) examineEnvoy(c *collector) {
	e := &f.envoy
	switch {
	case e.url == "":
		c.unknown("envoy", "everything", "no admin listener was named")
		return
	case !e.info.ok():
		c.found(EnvoySilent, "envoy", "GET %s: %s", location(e.url, "server_info"), e.info.says())
		return
	case e.release == "":
		c.found(EnvoySilent, "envoy", "GET %s: the answer is not Envoy's", location(e.url, "server_info"))
		return
	}
	if _, err := envoy.LayoutFor(e.release); err != nil {
		c.found(EnvoyOld, "envoy", "Envoy %s: it needs 1.37 or newer", e.release)
		return
	}
	if e.dump == nil {
		c.found(EnvoySilent, "envoy", "GET %s: %s", location(e.url, "config_dump"), e.config.says())
		return
	}
	sites := f.sites()
	if len(sites) == 0 {
		var others []string
		for _, h := range e.dump.managers {
			for _, p := range h.processors() {
				others = append(others, p.cluster())
			}
		}
		switch {
		case len(others) > 0:
			c.found(NoFilter, "envoy", "its ext_proc filters lead to other clusters: %s", some(others))
		default:
			c.found(NoFilter, "envoy", "%s, and none with an ext_proc filter", plural(len(e.dump.managers), "HTTP connection manager"))
		}
		return
	}
	var fallbacks, followers []string
	for _, s := range sites {
		s.examine(c)
		fallbacks, followers = append(fallbacks, s.fallbacks...), append(followers, s.followers...)
	}
	f.examineHosts(c, fallbacks, followers)
}
