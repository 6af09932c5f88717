package extproc

import (
	"log/slog"
	"strings"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

type bodyMode = modev3.ProcessingMode_BodySendMode

// The modes that are routed.
const (
	buffered   = modev3.ProcessingMode_BUFFERED
	fullDuplex = modev3.ProcessingMode_FULL_DUPLEX_STREAMED
)

// requestMode is the filter's request_body_mode. A first message without protocol_config comes from a proxy older than that field; it is
// taken for BUFFERED, the mode that the documentation asks for.
func requestMode(first *request) bodyMode {
	if c := first.GetProtocolConfig(); c != nil {
		return c.GetRequestBodyMode()
	}
	return buffered
}

// duplex modes expect the body back; a stream that ends before it was echoed truncates it.
func duplex(m bodyMode) bool { return m == fullDuplex || m == modev3.ProcessingMode_GRPC }

// direction follows the request or the response of a stream.
type direction struct {
	mode    bodyMode
	started bool
	done    bool // no further message, or none whose absence of a reply would harm
}

func (d *direction) headers(eos bool) {
	d.started = true
	d.done = d.done || eos || d.mode == modev3.ProcessingMode_NONE
}

func (d *direction) body(b *extprocv3.HttpBody) {
	d.started = true
	single := d.mode == buffered || d.mode == modev3.ProcessingMode_BUFFERED_PARTIAL
	d.done = d.done || single || b.GetEndOfStream() || b.GetEndOfStreamWithoutMessage()
}

func (d *direction) trailers() { d.started, d.done = true, true }

// traffic follows both directions of a stream.
type traffic struct{ req, resp direction }

// modes are those of the filter, as the first message tells them.
func modes(first *request) *traffic {
	return &traffic{req: direction{mode: requestMode(first)}, resp: direction{mode: first.GetProtocolConfig().GetResponseBodyMode()}}
}

// over reports whether the stream can end without harm to what is still to come.
func (t *traffic) over() bool {
	return (t.req.done || !t.req.started) && (t.resp.done || !duplex(t.resp.mode))
}

// pass answers a stream that is not routed, from its first message on, so that the request and its response stay intact.
func (x *exchange) pass(m *request, t *traffic) outcome {
	label := modeLabel(t.req.mode)
	if t.req.mode == buffered { // only without request headers: the route and the headers are gone when the body comes
		label = "no_request_headers"
	}
	x.note(label, "requests of this mode are passed on unrouted; kvsteer routes request_header_mode SEND with request_body_mode BUFFERED or FULL_DUPLEX_STREAMED")
	if o := x.relay(m, t); o != outcomeAborted {
		return o
	}
	return outcomePassthrough // the other side has all that it waits for
}

// relay answers a message, and those that follow until the stream can end, with what leaves the traffic as it is. A nil message is none. It names
// the end: outcomePassthrough is the ordinary one.
func (x *exchange) relay(m *request, t *traffic) outcome {
	for {
		if m != nil {
			x.hold.force(int64(len(m.GetRequestBody().GetBody()) + len(m.GetResponseBody().GetBody())))
			answered, err := x.relayOne(m, t)
			if err != nil {
				return ended(err)
			}
			x.hold.force(0)
			if !answered && !duplex(t.req.mode) && !duplex(t.resp.mode) {
				return outcomeUnexpected
			}
		}
		if t.over() {
			return outcomePassthrough
		}
		var err error
		if t.req.done { // the response is the engine's: it may take long
			var gaveUp bool
			if m, gaveUp, err = x.receiveUntil(nil); gaveUp {
				return outcomeDrained
			}
		} else {
			m, err = x.receive()
		}
		if err != nil {
			return ended(err)
		}
	}
}

// relayOne answers one message, and reports whether it is of a kind that gets an answer. Those that do not are, in duplex modes, window updates.
func (x *exchange) relayOne(m *request, t *traffic) (answered bool, err error) {
	switch r := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		t.req.headers(r.RequestHeaders.GetEndOfStream())
		return true, x.conv.Send(headersReply(x.undecided()))
	case *extprocv3.ProcessingRequest_RequestBody:
		t.req.body(r.RequestBody)
		if duplex(t.req.mode) {
			return true, x.echo(r.RequestBody.GetBody(), r.RequestBody, t.req.mode, bodyReply)
		}
	case *extprocv3.ProcessingRequest_RequestTrailers:
		t.req.trailers()
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		t.resp.headers(r.ResponseHeaders.GetEndOfStream())
		x.served(m)
	case *extprocv3.ProcessingRequest_ResponseBody:
		t.resp.body(r.ResponseBody)
		if duplex(t.resp.mode) {
			return true, x.echo(r.ResponseBody.GetBody(), r.ResponseBody, t.resp.mode, responseBodyReply)
		}
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		t.resp.trailers()
	}
	r := emptyReply(m)
	if r == nil {
		return false, nil
	}
	return true, x.conv.Send(r)
}

// echo sends a part of a body back as it came, in pieces where the mode allows. flags are those of the part's end.
func (x *exchange) echo(body []byte, flags *extprocv3.HttpBody, mode bodyMode, reply func(*extprocv3.CommonResponse) *response) error {
	for mode == fullDuplex && len(body) > maxChunk {
		if err := x.conv.Send(reply(streamed(body[:maxChunk], nil))); err != nil {
			return err
		}
		body = body[maxChunk:]
	}
	return x.conv.Send(reply(streamed(body, flags)))
}

// modeLabel is a label of a closed set, whatever number a proxy sends.
func modeLabel(m bodyMode) string {
	if name, ok := modev3.ProcessingMode_BodySendMode_name[int32(m)]; ok {
		return strings.ToLower(name)
	}
	return "unknown"
}

// note counts a stream that is not routed, and logs the first of its mode.
func (s *Server) note(mode, why string) {
	s.metrics.passthrough.WithLabelValues(mode).Inc()
	if _, told := s.told.LoadOrStore(mode, true); !told {
		s.log.Warn("ext_proc stream not routed", slog.String("mode", mode), slog.String("why", why))
	}
}
