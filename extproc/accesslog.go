package extproc

import (
	"errors"
	"io"
	"sync/atomic"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/kvsteer/kvsteer/internal/router"
)

const (
	// maxLogMessage is the longest message of an access log stream. Envoy sends each record by itself where buffer_size_bytes is 0, and
	// about 16 KiB at its default; a record holds little beside the headers that it is told to log.
	maxLogMessage = 1 << 20
	// maxLogStreams is the number of access log streams. Each worker of each Envoy has one.
	maxLogStreams = 4096
	// logQuiet is for how long nothing comes on a stream that is taken for read when the server shuts down, and logRest bounds the wait for that.
	logQuiet = 10 * time.Millisecond
	logRest  = 20 * logQuiet
)

// Completer takes the ends of requests, as Envoy's access log tells them. It is called from many goroutines and must not block.
type Completer interface {
	Complete(c router.Completion)
}

// logOutcome says how an access log stream ended; one of a closed set.
type logOutcome string

const (
	logEnded     logOutcome = "ended"     // by Envoy
	logDrained   logOutcome = "drained"   // by our shutdown
	logTooLarge  logOutcome = "too_large" // a message above its cap
	logMalformed logOutcome = "malformed" // a message that is none
	logRefused   logOutcome = "refused"   // one stream too many
	logPanic     logOutcome = "panic"
)

func logOutcomes() []logOutcome {
	return []logOutcome{logEnded, logDrained, logTooLarge, logMalformed, logRefused, logPanic}
}

// accessLog answers the access log streams of one Run.
type accessLog struct {
	accesslogv3.UnimplementedAccessLogServiceServer
	*service
}

// StreamAccessLogs implements the gRPC service. Envoy reads no answer; a stream that ends is opened again with the next record.
func (a *accessLog) StreamAccessLogs(stream accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	o := a.take(stream)
	a.metrics.logStreams.WithLabelValues(string(o)).Inc()
	switch o {
	case logDrained:
		return status.Error(codes.Unavailable, "the router is shutting down")
	case logTooLarge, logRefused:
		return status.Error(codes.ResourceExhausted, string(o))
	case logMalformed:
		return status.Error(codes.InvalidArgument, string(o))
	case logPanic:
		return status.Error(codes.Internal, string(o))
	}
	return stream.SendMsg(&accesslogv3.StreamAccessLogsResponse{})
}

// take takes records until the stream ends or the server shuts down. They are received in a goroutine of their own, since a receive ends
// only with its stream, and that with this function.
func (a *accessLog) take(stream grpc.ServerStream) logOutcome {
	defer a.logStreams.Add(-1)
	if a.logStreams.Add(1) > maxLogStreams {
		return logRefused
	}
	a.metrics.openLogs.Inc()
	defer a.metrics.openLogs.Dec()
	done := make(chan logOutcome, 1)
	var taken atomic.Int64
	a.waits.Go(func() { done <- a.receive(stream, &taken) })
	select {
	case o := <-done:
		return o
	case <-a.ending:
		return rest(done, &taken)
	}
}

// rest waits until what has come on a stream is taken, since the end of the stream would drop it: a record that is not taken keeps its decision open.
func rest(done <-chan logOutcome, taken *atomic.Int64) logOutcome {
	quiet := time.NewTicker(logQuiet)
	defer quiet.Stop()
	last := taken.Load()
	for range logRest / logQuiet {
		select {
		case o := <-done:
			return o
		case <-quiet.C:
		}
		n := taken.Load()
		if n == last {
			break
		}
		last = n
	}
	return logDrained
}

// receive takes records until the stream ends. A message is not made into its generated type: that would cost a hundred times its bytes where
// it is made up of empty records, and one header that is not UTF-8 would lose it. An empty message keeps all fields as they came.
func (a *accessLog) receive(stream grpc.ServerStream, taken *atomic.Int64) (o logOutcome) {
	defer func() {
		if v := recover(); v != nil {
			a.panicked(v)
			o = logPanic
		}
	}()
	var m emptypb.Empty
	for {
		switch err := stream.RecvMsg(&m); {
		case errors.Is(err, io.EOF):
			return logEnded
		case status.Code(err) == codes.ResourceExhausted:
			return logTooLarge
		case status.Code(err) == codes.Internal:
			return logMalformed
		case err != nil:
			return logEnded
		}
		raw := m.ProtoReflect().GetUnknown()
		if len(raw) > maxLogMessage {
			return logTooLarge
		}
		if err := eachRecord(raw, a.completer.Complete); err != nil {
			return logMalformed
		}
		taken.Add(1)
	}
}
