//go:build dashboards

package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// TestDashboardsLive runs every query of the dashboard and the rules on a real Prometheus, with the shipped scrape configuration,
// that reads a site in which each kind of trouble has happened, and wants data from each.
func TestDashboardsLive(t *testing.T) {
	began := time.Now()
	site := startSite(t)
	prom := startPrometheus(t, site)
	trouble(t, site, prom)
	checkPanels(t, prom, began)
	checkVariables(t, prom)
	checkRules(t, prom, began)
	checkMetrics(t, prom, began)
}

// startSite starts two routers that speak TLS and two nodes, and five pools: chat is followed by the nodes, own and old by the routers themselves, where old is observed
// and has an engine of a release that cannot tell salted blocks, text has engines that announce nothing, and named one that DNS gives.
func startSite(t *testing.T) *lab.Site {
	t.Helper()
	dir, err := os.MkdirTemp("", "kvs") // t.TempDir's path is too long for a Unix socket
	if err != nil {
		t.Fatal(err)
	}
	kvsteer := filepath.Join(dir, "kvsteer")
	run(t, "..", "go", "build", "-o", kvsteer, "./cmd/kvsteer")
	l, err := lab.New(lab.Options{Kvsteer: kvsteer, Envoy: program(t, "KVSTEER_ENVOY_1_40", "envoy.sh", "1.40.0"), Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); os.RemoveAll(dir) })
	authority, err := lab.NewAuthority(dir, "routers")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := authority.Issue("router", "router.test")
	if err != nil {
		t.Fatal(err)
	}
	quick := []string{"--prefill-rate", "100000", "--decode-rate", "2000"}
	named := startNamed(t, kvsteer)
	site, err := l.StartSite(t.Context(), lab.SiteOptions{
		EnvoyVersion: "1.40.0",
		RouterConfig: fmt.Sprintf("probe: {interval: 200ms}\nwarmup: 5s\nstate_dir: %q\ntls: {cert_file: %q, key_file: %q}", filepath.Join(t.TempDir(), "ROUTER_NAME"), cert, key),
		Routers:      2,
		Nodes:        2,
		NodeConfig:   "max_blocks: 1000", // the fewest: they fill within the time of the test
		EnvoyConfig:  fmt.Sprintf("router_tls: {ca_file: %q, server_name: router.test}", authority.File),
		Pools: []lab.PoolOptions{
			{Name: "chat", Model: "sim", Match: "{host: chat.test}", Engines: 3, Args: quick},
			{Name: "own", Model: "own", Match: "{host: own.test}", Engines: 2, Own: true, Dial: true, Args: quick},
			{Name: "old", Model: "old", Match: "{host: old.test}", Config: "mode: observe", Engines: 1, Own: true, Dial: true, Replay: true, Args: append(quick[:len(quick):len(quick)], "--events-format", "old-array")},
			{Name: "text", Model: "text", Match: "{host: text.test}", Config: "approximate: {cache_tokens: 4000}", Engines: 2, Args: quick, Silent: true},
			{Name: "named", Model: "named", Match: "{host: named.test}", Config: fmt.Sprintf("dns: \"localhost:%d\"", named)},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return site
}

// startNamed starts an engine that DNS gives by its host's name, and returns its port.
func startNamed(t *testing.T, kvsteer string) int {
	t.Helper()
	ports, err := lab.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), kvsteer, "engine", "--listen", fmt.Sprintf("127.0.0.1:%d", ports[0]), "--model", "named")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // the test's context has ended it
	return ports[0]
}

// prometheus is a running Prometheus.
type prometheus struct{ url string }

// startPrometheus starts one with deploy/prometheus/prometheus.yml, where targets are the site's and intervals shorter, and waits
// until it has read all.
func startPrometheus(t *testing.T, site *lab.Site) *prometheus {
	t.Helper()
	dir := t.TempDir()
	rulesPath, err := filepath.Abs("prometheus/rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	config := read(t, "prometheus/prometheus.yml")
	var routers, nodes []string
	for _, r := range site.Routers {
		routers = append(routers, strings.TrimPrefix(r.Admin, "http://"))
	}
	for _, n := range site.Nodes {
		nodes = append(nodes, strings.TrimPrefix(n.Admin, "http://"))
	}
	for from, to := range map[string]string{
		"127.0.0.1:9003": strings.Join(routers, `", "`), "127.0.0.1:9011": strings.Join(nodes, `", "`), "127.0.0.1:9901": strings.TrimPrefix(site.EnvoyAdmin, "http://"),
		": 15s": ": 1s", "- rules.yml": "- " + rulesPath,
	} {
		if !strings.Contains(config, from) {
			t.Fatalf("prometheus.yml does not hold %q", from)
		}
		config = strings.ReplaceAll(config, from, to)
	}
	path := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(path, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	ports, err := lab.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", ports[0])
	binary := program(t, "KVSTEER_PROMETHEUS", "prometheus.sh")
	if info, err := os.Stat(binary); err == nil && info.IsDir() {
		binary = filepath.Join(binary, "prometheus")
	}
	log, err := os.Create(filepath.Join(dir, "prometheus.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "--config.file="+path, "--web.listen-address="+address, "--storage.tsdb.path="+filepath.Join(dir, "data"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Wait() // the test's context has ended it
		if log.Close(); t.Failed() {
			t.Logf("prometheus.log:\n%s", read(t, log.Name()))
		}
	})
	p := &prometheus{url: "http://" + address}
	eventually(t, "Prometheus has read routers, nodes and Envoy", func() bool {
		found, err := p.instant(t.Context(), "up == 1")
		return err == nil && found == len(routers)+len(nodes)+1
	})
	return p
}

// eventually polls a condition, for at most a time that no healthy run comes near.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline.C:
			t.Fatalf("not within a minute: %s", what)
		case <-tick.C:
		}
	}
}

// answer is Prometheus' answer to a query.
type answer struct {
	Status string `json:"status"`
	Error  string `json:"error"`
	Data   struct {
		Result []struct {
			Value  []any   `json:"value"`
			Values [][]any `json:"values"`
		} `json:"result"`
	} `json:"data"`
}

// ask returns the number of series that have a number in a query's answer.
func (p *prometheus) ask(ctx context.Context, path string, form url.Values) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path+"?"+form.Encode(), nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	var a answer
	if err := json.Unmarshal(text, &a); err != nil {
		return 0, fmt.Errorf("%.200s: %w", text, err)
	}
	if a.Status != "success" {
		return 0, fmt.Errorf("%s", a.Error)
	}
	found := 0
	for _, s := range a.Data.Result {
		for _, v := range append(s.Values, s.Value) {
			if len(v) != 2 {
				continue
			}
			if n, err := strconv.ParseFloat(fmt.Sprint(v[1]), 64); err == nil && n == n { // not NaN, as 0/0 is
				found++
				break
			}
		}
	}
	return found, nil
}

func (p *prometheus) instant(ctx context.Context, expr string) (int, error) {
	return p.ask(ctx, "/api/v1/query", url.Values{"query": {expr}})
}

// since asks for every second from a time until the present, as a graph does.
func (p *prometheus) since(ctx context.Context, expr string, began time.Time) (int, error) {
	end := time.Now()
	start := end.Add(-end.Sub(began).Truncate(time.Second)) // so that the last step is the present
	return p.ask(ctx, "/api/v1/query_range", url.Values{
		"query": {expr}, "start": {start.Format(time.RFC3339Nano)}, "end": {end.Format(time.RFC3339Nano)}, "step": {"1"},
	})
}

// filled replaces the dashboard's variables: every pool and endpoint, and a rate over a time that fits the scrape interval of 1 s.
func filled(expr string) string {
	return strings.NewReplacer("$__rate_interval", "10s", "$envoy_job", "envoy", "$job", "kvsteer|kvsteer-node", "$pool", ".*", "$endpoint", ".*").Replace(expr)
}

// checkPanels runs every panel's queries and prints how many series each gives.
func checkPanels(t *testing.T, prom *prometheus, began time.Time) {
	t.Helper()
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "panel\tquery\tseries")
	for _, p := range readDashboard(t).Panels {
		for _, q := range p.Targets {
			ask := prom.since
			if q.Instant {
				ask = func(ctx context.Context, expr string, _ time.Time) (int, error) { return prom.instant(ctx, expr) }
			}
			found, err := ask(t.Context(), filled(q.Expr), began)
			switch {
			case err != nil:
				t.Errorf("panel %q, query %s: %v: %s", p.Title, q.RefID, err, q.Expr)
			case found == 0:
				t.Errorf("panel %q, query %s has no data: %s", p.Title, q.RefID, filled(q.Expr))
			}
			fmt.Fprintf(w, "%s\t%s\t%d\n", p.Title, q.RefID, found)
		}
	}
	w.Flush()
	t.Logf("panels:\n%s", table.String())
}

// checkVariables asks for the values that a viewer can choose from.
func checkVariables(t *testing.T, prom *prometheus) {
	t.Helper()
	values := regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
	asked := 0
	for _, v := range readDashboard(t).Templating.List {
		if v.Type != "query" {
			continue
		}
		asked++
		m := values.FindStringSubmatch(v.Definition)
		if m == nil {
			t.Fatalf("variable %s: %q is no label_values(SELECTOR, LABEL)", v.Name, v.Definition)
		}
		found, err := prom.instant(t.Context(), fmt.Sprintf(`count by (%s) (%s{%[1]s!=""})`, m[2], strings.TrimSuffix(filled(m[1]), "}")))
		if strings.HasSuffix(m[1], "}") {
			found, err = prom.instant(t.Context(), fmt.Sprintf(`count by (%s) (%s, %[1]s!=""})`, m[2], strings.TrimSuffix(filled(m[1]), "}")))
		}
		if err != nil || found == 0 {
			t.Errorf("variable %s has no values: %v", v.Name, err)
		}
	}
	if asked < 4 {
		t.Errorf("only %d variables were asked for", asked)
	}
}

// selector finds the series that an expression reads, matcher the conditions in it.
var (
	selector = regexp.MustCompile(`[a-z_:]*(?:kvsteer|envoy)_[a-z0-9_:]+(?:\{[^}]*\})?|up\{[^}]*\}`)
	matcher  = regexp.MustCompile(`(\w+) *(?:=~|!=|!~|=) *"[^"]*"`)
)

// checkRules wants data from every recording rule, and from everything that an alert reads: an alert itself has data only while it is
// true. Where the values that an alert looks for do not occur in this site, series with these labels have to be there.
func checkRules(t *testing.T, prom *prometheus, began time.Time) {
	t.Helper()
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "rule\treads\tseries")
	for _, r := range rules(t) {
		if _, err := prom.instant(t.Context(), r.Expr); err != nil {
			t.Errorf("%s%s: %v", r.Alert, r.Record, err)
		}
		reads := []string{r.Record}
		if r.Alert != "" {
			reads = selector.FindAllString(r.Expr, -1)
		}
		if len(reads) == 0 {
			t.Errorf("%s: nothing that it reads was found in %s", r.Alert, r.Expr)
		}
		for _, expr := range reads {
			if strings.HasPrefix(expr, "envoy_cluster_name") {
				continue
			}
			found, err := prom.since(t.Context(), expr, began)
			if err == nil && found == 0 {
				expr = matcher.ReplaceAllString(expr, `$1!=""`)
				found, err = prom.since(t.Context(), expr, began)
			}
			if err != nil || found == 0 {
				t.Errorf("%s%s: %s has no data: %v", r.Alert, r.Record, expr, err)
			}
			fmt.Fprintf(w, "%s%s\t%s\t%d\n", r.Alert, r.Record, expr, found)
		}
	}
	w.Flush()
	t.Logf("rules:\n%s", table.String())
}

// checkMetrics wants series of every metric that is documented: the site has all parts. Left out are those of package extproc, some of which come with modes of
// Envoy's filter that this site has not.
func checkMetrics(t *testing.T, prom *prometheus, began time.Time) {
	t.Helper()
	names := regexp.MustCompile("(?m)^\\| `(kvsteer_[a-z0-9_]+)` \\| (\\w+) ").FindAllStringSubmatch(read(t, "../docs/metrics.md"), -1)
	if len(names) < 100 {
		t.Fatalf("%d metrics are documented", len(names))
	}
	for _, n := range names {
		name := n[1]
		if strings.HasPrefix(name, "kvsteer_extproc_") {
			continue
		}
		if n[2] == "histogram" {
			name += "_count"
		}
		if found, err := prom.since(t.Context(), name, began); err != nil || found == 0 {
			t.Errorf("metric %s has no data: %v", n[1], err)
		}
	}
}
