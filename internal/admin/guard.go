package admin

import (
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// problem is the body of an error.
type problem struct {
	Error string   `json:"error"`
	Known []string `json:"known,omitempty"` // what there is, when what was asked for is not among it
}

func answer(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		status, text = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be written as JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}

// refuse answers a request that is not let through, and counts why.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, why refusal, status int, text string) {
	s.o.Metrics.refused.WithLabelValues(string(why)).Inc()
	s.o.Log.Debug("an admin request is refused", slog.String("why", string(why)), slog.String("from", r.RemoteAddr))
	answer(w, status, problem{Error: text})
}

// protected keeps out web pages that a browser on the host shows. A page of another name that its owner lets resolve to 127.0.0.1
// is of the same origin to the browser, but names itself as the host. Where a token is asked for, that alone keeps such pages out.
func (s *Server) protected(next http.Handler) http.Handler {
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.refuse(w, r, refusedOrigin, http.StatusForbidden, "the request comes from a web page of another origin")
	}))
	inner := origins.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if s.token == nil && !loopbackHost(r.Host) {
			s.refuse(w, r, refusedHost, http.StatusForbidden,
				"the request's Host is not localhost, 127.0.0.1 or [::1]; with admin.token_file other names are possible")
			return
		}
		inner.ServeHTTP(w, r)
	})
}

// loopbackHost reports whether the Host of a request names this host. Only HTTP/1.0 clients leave it out; browsers never do.
func loopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if host == "" || strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// authorized lets requests through that bring the token, if one is asked for.
func (s *Server) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.token != nil && !s.token.brought(r) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="kvsteer"`)
			text := "a token is needed: Authorization: Bearer with the content of admin.token_file"
			if r.Header.Get("Authorization") != "" {
				text = "the token is not the one in admin.token_file"
			}
			s.refuse(w, r, refusedToken, http.StatusUnauthorized, text)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// routed has requests that mux has no handler for answered as the others are: under /api/ with a problem, elsewhere with the paths there are.
func (s *Server) routed(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		own := &statusOnly{ResponseWriter: w, status: http.StatusOK}
		mux.ServeHTTP(own, r) // tells 404 from 405, and sets Allow
		text := "there is no such path"
		switch own.status {
		case http.StatusNotFound:
			if s.o.Node != nil && ofRouters(r.URL.Path) {
				text = "this is a node: modes, decisions and the index are the routers'"
			}
		case http.StatusMethodNotAllowed:
			text = "this path is for " + w.Header().Get("Allow")
		default: // on to the path's one spelling
			w.WriteHeader(own.status)
			return
		}
		if strings.HasPrefix(r.URL.Path, "/api/") {
			answer(w, own.status, problem{Error: text + "; GET / lists the paths"})
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(own.status)
		_, _ = io.WriteString(w, text+"\n\n"+s.index())
	})
}

// ofRouters reports whether a path is one that a router has and a node has not.
func ofRouters(path string) bool {
	return strings.HasPrefix(path, "/api/v1/pools/") || path == "/api/v1/decisions" || strings.HasPrefix(path, "/api/v1/endpoints/") && strings.HasSuffix(path, "/blocks")
}

// statusOnly keeps the status of an answer, and drops its body.
type statusOnly struct {
	http.ResponseWriter
	status int
}

func (s *statusOnly) WriteHeader(status int)      { s.status = status }
func (s *statusOnly) Write(p []byte) (int, error) { return len(p), nil }

// command guards a handler that changes something.
func (s *Server) command(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
		switch {
		case !strings.EqualFold(strings.TrimSpace(kind), "application/json"):
			s.refuse(w, r, refusedType, http.StatusUnsupportedMediaType, "Content-Type: application/json is needed")
		case s.o.Control == nil || !s.write.Load():
			s.refuse(w, r, refusedReadOnly, http.StatusForbidden, "this "+s.process()+"'s admin listener is read-only; admin.write: true in its configuration allows commands")
		default:
			next(w, r)
		}
	})
}
