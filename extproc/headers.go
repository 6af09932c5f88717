package extproc

import (
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/kvsteer/kvsteer/internal/router"
)

// undeclared is the body length of a request without a usable content-length.
const undeclared = -1

// readHeaders gives the part of a request that its headers tell, the declared length of the body and the bytes that the headers hold.
// The request refers to m until the decision is made.
func readHeaders(m *corev3.HeaderMap) (req router.Request, declared, held int64) {
	declared = undeclared
	var method, path, host, contentType, encoding, length first
	for _, h := range m.GetHeaders() {
		held += int64(len(h.GetKey()) + len(h.GetValue()) + len(h.GetRawValue()))
		switch key := h.GetKey(); len(key) {
		case len(":path"):
			path.take(h, ":path")
		case len(":method"):
			method.take(h, ":method")
		case len(":authority"):
			host.take(h, ":authority")
		case len("content-type"):
			contentType.take(h, "content-type")
		case len("content-length"):
			length.take(h, "content-length")
		case len("content-encoding"):
			encoding.take(h, "content-encoding")
		}
	}
	req.Meta.Method, req.Meta.Path, req.Host = method.value, path.value, host.value
	req.Meta.ContentType, req.Meta.ContentEncoding = contentType.value, encoding.value
	req.Header = func(name string) string { return headerValue(m, name) }
	req.Several = func(name string) bool { return copies(m, name) > 1 }
	if n, err := strconv.ParseUint(strings.TrimSpace(length.value), 10, 63); err == nil {
		declared = int64(n)
	}
	return req, declared, held
}

// first keeps the value of the first header of a name.
type first struct {
	value string
	found bool
}

func (f *first) take(h *corev3.HeaderValue, name string) {
	if !f.found && strings.EqualFold(h.GetKey(), name) {
		f.value, f.found = valueOf(h), true
	}
}

// headerValue is the value of the first header called name in any case, "" when there is none.
func headerValue(m *corev3.HeaderMap, name string) string {
	for _, h := range m.GetHeaders() {
		if len(h.GetKey()) == len(name) && strings.EqualFold(h.GetKey(), name) {
			return valueOf(h)
		}
	}
	return ""
}

// copies counts the headers called name in any case.
func copies(m *corev3.HeaderMap, name string) (n int) {
	for _, h := range m.GetHeaders() {
		if strings.EqualFold(h.GetKey(), name) {
			n++
		}
	}
	return n
}

// valueOf reads raw_value, which Envoy fills, and value, which other proxies and older settings fill.
func valueOf(h *corev3.HeaderValue) string {
	if raw := h.GetRawValue(); len(raw) > 0 {
		return string(raw)
	}
	return h.GetValue()
}
