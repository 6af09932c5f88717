package extproc

import (
	"log/slog"
	"strings"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

type bodyMode = modev3.ProcessingMode_BodySendMode

const buffered = modev3.ProcessingMode_BUFFERED

// requestMode is the filter's request_body_mode. A first message without protocol_config comes from a proxy older than that field; it is
// taken for BUFFERED, the mode that the documentation asks for.
func requestMode(first *request) bodyMode {
	if c := first.GetProtocolConfig(); c != nil {
		return c.GetRequestBodyMode()
	}
	return buffered
}

// duplex modes expect the body back; a stream that ends before it was echoed truncates it.
func duplex(m bodyMode) bool {
	return m == modev3.ProcessingMode_FULL_DUPLEX_STREAMED || m == modev3.ProcessingMode_GRPC
}

// direction follows the request or the response of a stream that is passed through.
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

// pass answers a stream that is not routed, from its first message on, so that the request and its response stay intact.
func (x *exchange) pass(m *request, mode bodyMode) outcome {
	label := modeLabel(mode)
	if mode == buffered { // only without request headers: the route and the headers are gone when the body comes
		label = "no_request_headers"
	}
	x.note(label, "requests of this mode are passed on unrouted; kvsteer routes request_header_mode SEND with request_body_mode BUFFERED")

	req := direction{mode: mode}
	resp := direction{mode: m.GetProtocolConfig().GetResponseBodyMode()}
	for {
		if r := passReply(m, &req, &resp); r != nil {
			x.hold.force(int64(len(m.GetRequestBody().GetBody()) + len(m.GetResponseBody().GetBody())))
			if err := x.conv.Send(r); err != nil {
				return outcomePassthrough
			}
			x.hold.force(0)
		} else if !duplex(req.mode) && !duplex(resp.mode) {
			return outcomeUnexpected
		}
		if (req.done || !req.started) && (resp.done || !duplex(resp.mode)) {
			return outcomePassthrough
		}
		var err error
		if m, err = x.conv.Recv(); err != nil {
			if o := ended(err); o == outcomeTooLarge { // the one end that is not the other side's
				return o
			}
			return outcomePassthrough
		}
	}
}

// passReply is the reply that leaves the traffic as it is, but for our headers, which no client may set. It is nil for messages that
// expect none: in duplex modes those are window updates.
func passReply(m *request, req, resp *direction) *response {
	switch r := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		req.headers(r.RequestHeaders.GetEndOfStream())
		return headersReply(decisionMutation("", ""))
	case *extprocv3.ProcessingRequest_RequestBody:
		req.body(r.RequestBody)
		if duplex(req.mode) {
			return bodyReply(echo(r.RequestBody))
		}
	case *extprocv3.ProcessingRequest_RequestTrailers:
		req.trailers()
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		resp.headers(r.ResponseHeaders.GetEndOfStream())
	case *extprocv3.ProcessingRequest_ResponseBody:
		resp.body(r.ResponseBody)
		if duplex(resp.mode) {
			return &response{Response: &extprocv3.ProcessingResponse_ResponseBody{
				ResponseBody: &extprocv3.BodyResponse{Response: echo(r.ResponseBody)},
			}}
		}
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		resp.trailers()
	}
	return emptyReply(m)
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
