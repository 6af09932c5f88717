package enginesim

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// maxBody bounds a request body; the bodies that fit in a model's context are far smaller.
	maxBody = 64 << 20
	// keepAlive is how long uvicorn, vLLM's web server, keeps an idle connection.
	keepAlive = 5 * time.Second
)

func (e *Engine) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/completions", post(func(w http.ResponseWriter, r *http.Request, body []byte) { e.complete(w, r, body, false) }))
	mux.HandleFunc("/v1/chat/completions", post(func(w http.ResponseWriter, r *http.Request, body []byte) { e.complete(w, r, body, true) }))
	mux.HandleFunc("/v1/completions/render", post(func(w http.ResponseWriter, r *http.Request, body []byte) { e.render(w, r, body, false) }))
	mux.HandleFunc("/v1/chat/completions/render", post(func(w http.ResponseWriter, r *http.Request, body []byte) { e.render(w, r, body, true) }))
	mux.HandleFunc("/v1/load_lora_adapter", post(e.load))
	mux.HandleFunc("/v1/unload_lora_adapter", post(e.unload))
	mux.HandleFunc("/tokenize", post(e.tokenize))
	mux.HandleFunc("/reset_prefix_cache", e.resetPrefixCache)
	mux.HandleFunc("/v1/models", get(func(w http.ResponseWriter) { writeJSON(w, http.StatusOK, e.models()) }))
	mux.HandleFunc("/health", get(func(http.ResponseWriter) {}))
	mux.HandleFunc("/ping", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/version", get(func(w http.ResponseWriter) {
		writeJSON(w, http.StatusOK, map[string]string{"version": e.opts.Events.Format.release()})
	}))
	mux.HandleFunc("/load", get(func(w http.ResponseWriter) {
		n := 0
		for _, r := range e.ranks {
			l := r.loop.load()
			n += l.running + l.waiting
		}
		writeJSON(w, http.StatusOK, map[string]int{"server_load": n})
	}))
	if e.opts.Events.Format == Map {
		mux.HandleFunc("/kv_event_sources", get(func(w http.ResponseWriter) { writeJSON(w, http.StatusOK, e.eventSources()) }))
	}
	mux.HandleFunc("/sim/blocks", e.truth)
	mux.Handle("/metrics", promhttp.HandlerFor(e.metrics.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { detail(w, http.StatusNotFound) })
	return e.authorized(mux)
}

// authorized asks for the API key under /v1, and only there, as vLLM does.
func (e *Engine) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key := e.opts.APIKey; key != "" && strings.HasPrefix(r.URL.Path, "/v1") && r.Header.Get("Authorization") != "Bearer "+key {
			writeJSON(w, http.StatusUnauthorized, map[string]string{"error": "Unauthorized"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// get restricts a handler to GET.
func get(h func(http.ResponseWriter)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			detail(w, http.StatusMethodNotAllowed)
			return
		}
		h(w)
	}
}

// post restricts a handler to POST with a JSON body, and reads it.
func post(h func(http.ResponseWriter, *http.Request, []byte)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			detail(w, http.StatusMethodNotAllowed)
			return
		}
		if t := r.Header.Get("Content-Type"); !strings.HasPrefix(strings.ToLower(t), "application/json") {
			fail(w, invalid("", "Unsupported Media Type: Only 'application/json' is allowed"))
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			detail(w, http.StatusRequestEntityTooLarge)
			return
		}
		h(w, r, body)
	}
}

// detail is the web framework's own error form.
func detail(w http.ResponseWriter, status int) {
	writeJSON(w, status, map[string]string{"detail": http.StatusText(status)})
}

func fail(w http.ResponseWriter, bad *apiError) {
	writeJSON(w, bad.Status, map[string]*apiError{"error": bad})
}

func (e *Engine) complete(w http.ResponseWriter, r *http.Request, body []byte, chat bool) {
	// The answer carries the id that a proxy gave the request, as vLLM's does.
	c, bad := e.prepare(body, r.Header.Get("X-Request-Id"), e.saltOf(r), chat)
	if bad != nil {
		fail(w, bad)
		return
	}
	rank, bad := e.pick(r.Header)
	if bad != nil {
		fail(w, bad)
		return
	}
	e.generate(w, r, rank, c)
}

// saltOf is the cache salt of a header, "" when the body's counts.
func (e *Engine) saltOf(r *http.Request) string {
	if e.opts.SaltHeader == "" {
		return ""
	}
	return r.Header.Get(e.opts.SaltHeader)
}

// resetPrefixCache says whether the caches of all ranks are empty afterwards: one is not while requests run there.
func (e *Engine) resetPrefixCache(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		detail(w, http.StatusMethodNotAllowed)
		return
	}
	success := true
	for _, r := range e.ranks {
		success = r.loop.reset() && success
	}
	writeJSON(w, http.StatusOK, map[string]bool{"success": success})
}

// tokenize serves both forms, a text and messages; messages win. It does not check the length.
func (e *Engine) tokenize(w http.ResponseWriter, _ *http.Request, body []byte) {
	b, bad := decodeBody(body)
	if bad == nil {
		_, bad = e.adapterOf(b.Model)
	}
	var text string
	switch {
	case bad != nil:
	case len(b.Messages) > 0:
		text, _, bad = chatText(b, false)
	default:
		text, bad = promptText(b)
	}
	if bad != nil {
		fail(w, bad)
		return
	}
	tokens := tokenize(make([]uint32, 0, len(text)/3+8), text)
	reply := tokenizeReply{Count: len(tokens), MaxModelLen: e.opts.MaxModelLen, Tokens: tokens}
	if b.ReturnTokenStrs {
		reply.TokenStrs = pieces(text)
	}
	writeJSON(w, http.StatusOK, reply)
}

func (e *Engine) models() modelList {
	l := modelList{Object: "list"}
	card := func(id, root string) modelCard {
		return modelCard{ID: id, Object: "model", Created: e.created, OwnedBy: "vllm", Root: root}
	}
	for _, m := range e.opts.Models {
		c := card(m, e.opts.Models[0])
		c.MaxModelLen = &e.opts.MaxModelLen
		l.Data = append(l.Data, c)
	}
	for _, a := range e.all() {
		c := card(a.name, a.path)
		c.Parent = &e.opts.Models[0]
		l.Data = append(l.Data, c)
	}
	return l
}

// eventSources are the publishers by rank, with vLLM's defaults. What the real engine says without events was not recorded.
func (e *Engine) eventSources() map[string]eventSource {
	o := e.opts.Events
	sources := make(map[string]eventSource)
	for i, r := range e.ranks {
		if r.pub == nil {
			continue
		}
		s := eventSource{
			Enabled: true, Publisher: "zmq", Endpoint: atRank(o.Bind+o.Connect, e.EventsAddr(), i),
			BufferSteps: o.BufferSteps, HWM: 100_000, MaxQueueSize: 100_000, Topic: o.Topic,
		}
		if o.Replay != "" {
			s.ReplayEndpoint = ptr(atRank(o.Replay, e.ReplayAddr(), i))
		}
		sources[strconv.Itoa(i)] = s
	}
	return sources
}

// atRank is an endpoint as it was configured, but with the port of a rank: that of the bound address where the system picked it.
func atRank(endpoint, bound string, rank int) string {
	i := strings.LastIndexByte(endpoint, ':')
	port := endpoint[i+1:]
	if port == "0" {
		port = portOf(bound)
	}
	n, _ := strconv.Atoi(port) // checked by New
	return endpoint[:i+1] + strconv.Itoa(n+rank)
}
