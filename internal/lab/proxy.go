package lab

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"
)

// envoyConfig is what kvsteer envoy prints for a configuration of the site: what is shipped, with the access log in a file.
func (l *Lab) envoyConfig(s *Site, config string) ([]byte, error) {
	argv := []string{"envoy", "--config", config, "--access-log", s.AccessLog}
	if s.opt.Foreign != "" {
		argv = []string{"envoy", "--config", config, "--filter-only"}
	}
	if s.opt.EnvoyVersion != "" {
		argv = append(argv, "--envoy-version", s.opt.EnvoyVersion)
	}
	cmd := exec.Command(l.opt.Kvsteer, argv...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("kvsteer envoy: %w\n%s", err, errs.String())
	}
	if s.opt.Foreign != "" {
		return Merge([]byte(s.foreign()), out.Bytes())
	}
	return out.Bytes(), nil
}

// foreign is the site's foreign configuration with its own addresses.
func (s *Site) foreign() string {
	port := func(url string) string { return url[strings.LastIndexByte(url, ':')+1:] }
	var engines []string
	for _, e := range s.Engines {
		engines = append(engines, "{endpoint: {address: {socket_address: {address: localhost, port_value: "+port(e.Address)+"}}}}")
	}
	words := []string{
		"LISTEN_PORT", port(s.URL), "ADMIN_PORT", port(s.EnvoyAdmin), "ACCESS_LOG", s.AccessLog, "ENGINES", "[" + strings.Join(engines, ", ") + "]",
	}
	for word, text := range s.opt.Replace {
		words = append(words, word, text)
	}
	return strings.NewReplacer(words...).Replace(s.opt.Foreign)
}

func (s *Site) startEnvoy(ctx context.Context, config []byte) error {
	path := s.lab.file(s.opt, "envoy.yaml")
	if err := os.WriteFile(path, config, 0o644); err != nil {
		return fmt.Errorf("write Envoy's configuration: %w", err)
	}
	p, err := s.lab.start(prefix(s.opt)+"envoy", s.lab.opt.Envoy, "-c", path, "--disable-hot-restart", "--concurrency", "2",
		"--file-flush-interval-msec", "20", "-l", "warning")
	if err != nil {
		return err
	}
	s.Envoy = p
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("no answer within %s", startTimeout))
	defer cancel()
	return p.until(ctx, "ready", func() bool { return answers(ctx, s.EnvoyAdmin+"/ready") })
}

// EnvoyVersion asks an Envoy binary for its release, such as 1.40.0.
func EnvoyVersion(ctx context.Context, binary string) (string, error) {
	out, err := exec.CommandContext(ctx, binary, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", binary, err)
	}
	// "envoy  version: <commit>/1.40.0/Clean/RELEASE/BoringSSL"
	_, rest, _ := strings.Cut(string(out), "version: ")
	parts := strings.Split(rest, "/")
	if len(parts) < 2 {
		line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return "", fmt.Errorf("ask %s for its version: answer %.80q is not Envoy's", binary, line)
	}
	return parts[1], nil
}

// probe is the client of answers: one connection per question, so that no idle one hides a restart.
var probe = &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func answers(ctx context.Context, url string) bool { return answersTo(ctx, probe, url) }

func (e *Engine) answers(ctx context.Context) bool {
	return answersTo(ctx, e.client, e.URL()+"/health")
}

func answersTo(ctx context.Context, client *http.Client, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// roundRobin is Envoy alone before the engines, as a site without kvsteer would run it.
func roundRobin(listen, admin, accessLog string, engines []*Engine) []byte {
	socket := func(address string) string {
		host, port, _ := strings.Cut(address, ":")
		return fmt.Sprintf("{socket_address: {address: %s, port_value: %s}}", host, port)
	}
	var hosts []string
	for _, e := range engines {
		hosts = append(hosts, "{endpoint: {address: "+socket(e.Address)+"}}")
	}
	return fmt.Appendf(nil, `admin: {address: %s}
static_resources:
  listeners:
  - name: clients
    address: %s
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: clients
          stream_idle_timeout: 600s
          access_log:
          - name: envoy.access_loggers.file
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: %s
              log_format: {json_format: {code: "%%RESPONSE_CODE%%", upstream: "%%UPSTREAM_HOST%%", request_id: "%%REQ(X-REQUEST-ID)%%"}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{match: {prefix: "/"}, route: {cluster: engines, timeout: 0s}}]
  clusters:
  - name: engines
    type: STATIC
    connect_timeout: 1s
    lb_policy: ROUND_ROBIN
    circuit_breakers: {thresholds: [{max_connections: 100000, max_pending_requests: 100000, max_requests: 100000, max_retries: 1000}]}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        common_http_protocol_options: {idle_timeout: 3s}
        explicit_http_config: {http_protocol_options: {}}
    load_assignment: {cluster_name: engines, endpoints: [{lb_endpoints: [%s]}]}
`, socket(admin), socket(listen), accessLog, strings.Join(hosts, ", "))
}
