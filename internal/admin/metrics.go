package admin

import "github.com/prometheus/client_golang/prometheus"

// refusal says why a request was not let through; one of a closed set.
type refusal string

const (
	refusedToken    refusal = "token"        // none, or another one
	refusedHost     refusal = "host"         // not a loopback name, and no token is asked for
	refusedOrigin   refusal = "origin"       // a command from a web page of another origin
	refusedType     refusal = "content_type" // a command that is not JSON
	refusedReadOnly refusal = "read_only"    // a command, and commands are not allowed
)

// Metrics of the admin listener.
type Metrics struct {
	refused  *prometheus.CounterVec // why
	commands *prometheus.CounterVec // command, result
}

// NewMetrics registers the metrics with reg; nil registers them nowhere.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kvsteer_admin_refused_requests_total", Help: "Admin requests that were not let through: wrong token, host, origin or content type, or a command to a listener that only reads.",
		}, []string{"why"}),
		commands: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kvsteer_admin_commands_total", Help: "Admin commands that were let through: done or failed.",
		}, []string{"command", "result"}),
	}
	for _, why := range []refusal{refusedToken, refusedHost, refusedOrigin, refusedType, refusedReadOnly} {
		m.refused.WithLabelValues(string(why))
	}
	if reg != nil {
		reg.MustRegister(m.refused, m.commands)
	}
	return m
}
