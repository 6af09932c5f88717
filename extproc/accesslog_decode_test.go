package extproc

import (
	"net/netip"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/kvsteer/kvsteer/envoy"
	"github.com/kvsteer/kvsteer/internal/router"
)

type entry = datav3.HTTPAccessLogEntry

// entryOf is the record of a decision's request that the upstream answered, changed by change.
func entryOf(d router.Decision, upstream string, change func(*entry)) *entry {
	at := netip.MustParseAddrPort(upstream)
	e := &entry{
		CommonProperties: &datav3.AccessLogCommon{
			AccessLogType:               datav3.AccessLogType_DownstreamEnd,
			UpstreamRemoteAddress:       socket(at.Addr().String(), uint32(at.Port())),
			UpstreamRequestAttemptCount: 1,
			Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
				envoy.MetadataNamespace: metadata(d, false).GetFields()[envoy.MetadataNamespace].GetStructValue(),
			}},
		},
		Request:  &datav3.HTTPRequestProperties{Path: "/v1/chat/completions", RequestHeaders: map[string]string{"x-secret": "s3cret"}},
		Response: &datav3.HTTPResponseProperties{ResponseCode: wrapperspb.UInt32(200), ResponseCodeDetails: "via_upstream"},
	}
	if change != nil {
		change(e)
	}
	return e
}

func socket(ip string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: ip, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

func logOf(entries ...*entry) *accesslogv3.StreamAccessLogsMessage {
	return &accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_HttpLogs{
		HttpLogs: &accesslogv3.StreamAccessLogsMessage_HTTPAccessLogEntries{LogEntry: entries},
	}}
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func decodeRecords(b []byte) (all []router.Completion, err error) {
	err = eachRecord(b, func(c router.Completion) { all = append(all, c) })
	return all, err
}

func TestDecodeRecords(t *testing.T) {
	const upstream = "10.0.0.11:8000"
	flag := func(set func(*datav3.ResponseFlags)) func(*entry) {
		return func(e *entry) {
			e.CommonProperties.ResponseFlags = &datav3.ResponseFlags{}
			set(e.CommonProperties.ResponseFlags)
			e.Response = &datav3.HTTPResponseProperties{ResponseCode: wrapperspb.UInt32(503), ResponseCodeDetails: "upstream_reset_before_response_started{x}"}
		}
	}
	local := func(c *router.Completion) { c.Code, c.Answered = 503, false }
	tests := []struct {
		name   string
		change func(*entry)
		want   func(*router.Completion)
	}{
		{"answered", nil, func(*router.Completion) {}},
		{"type not set", func(e *entry) { e.CommonProperties.AccessLogType = datav3.AccessLogType_NotSet }, func(*router.Completion) {}},
		{"begin", func(e *entry) { e.CommonProperties.AccessLogType = datav3.AccessLogType_DownstreamStart }, func(c *router.Completion) { c.Partial = true }},
		{"between", func(e *entry) { e.CommonProperties.AccessLogType = datav3.AccessLogType_DownstreamPeriodic }, func(c *router.Completion) { c.Partial = true }},
		{"end of an attempt", func(e *entry) { e.CommonProperties.AccessLogType = datav3.AccessLogType_UpstreamEnd }, func(c *router.Completion) { c.Partial = true }},
		{"type not known", func(e *entry) { e.CommonProperties.AccessLogType = -1 }, func(c *router.Completion) { c.Partial = true }},
		{"no connection", flag(func(f *datav3.ResponseFlags) { f.UpstreamConnectionFailure = true }), func(c *router.Completion) { local(c); c.ConnectFailed = true }},
		{"reset by the upstream", flag(func(f *datav3.ResponseFlags) { f.UpstreamRemoteReset = true }), func(c *router.Completion) { local(c); c.Broken = true }},
		{"closed by the upstream", flag(func(f *datav3.ResponseFlags) { f.UpstreamConnectionTermination = true }), func(c *router.Completion) { local(c); c.Broken = true }},
		{"protocol error", flag(func(f *datav3.ResponseFlags) { f.UpstreamProtocolError = true }), func(c *router.Completion) { local(c); c.Broken = true }},
		{"closed by both", flag(func(f *datav3.ResponseFlags) {
			f.UpstreamConnectionTermination, f.DownstreamConnectionTermination = true, true
		}), local},
		{"left by the client", flag(func(f *datav3.ResponseFlags) { f.DownstreamRemoteReset = true }), local},
		{"no healthy upstream", flag(func(f *datav3.ResponseFlags) { f.NoHealthyUpstream = true }), local},
		{"engine's own 503", func(e *entry) { e.Response.ResponseCode = wrapperspb.UInt32(503) }, func(c *router.Completion) { c.Code = 503 }},
		{"no response", func(e *entry) { e.Response = nil }, func(c *router.Completion) { c.Code, c.Answered = 0, false }},
		{"no upstream", func(e *entry) { e.CommonProperties.UpstreamRemoteAddress = nil }, func(c *router.Completion) { c.Upstream = "" }},
		{"IPv6", func(e *entry) { e.CommonProperties.UpstreamRemoteAddress = socket("2001:DB8::1", 8000) }, func(c *router.Completion) { c.Upstream = "[2001:db8::1]:8000" }},
		{"IPv4 in IPv6", func(e *entry) { e.CommonProperties.UpstreamRemoteAddress = socket("::ffff:10.0.0.11", 8000) }, func(*router.Completion) {}},
		{"a name", func(e *entry) { e.CommonProperties.UpstreamRemoteAddress = socket("engine.test", 8000) }, func(c *router.Completion) { c.Upstream = "" }},
		{"a long name", func(e *entry) { e.CommonProperties.UpstreamRemoteAddress = socket(strings.Repeat("1", 100_000), 8000) }, func(c *router.Completion) { c.Upstream = "" }},
		{"a zone", func(e *entry) { e.CommonProperties.UpstreamRemoteAddress = socket("fe80::1%eth0", 8000) }, func(c *router.Completion) { c.Upstream = "" }},
		{"port 0", func(e *entry) { e.CommonProperties.UpstreamRemoteAddress = socket("10.0.0.11", 0) }, func(c *router.Completion) { c.Upstream = "" }},
		{"port too high", func(e *entry) { e.CommonProperties.UpstreamRemoteAddress = socket("10.0.0.11", 65_536) }, func(c *router.Completion) { c.Upstream = "" }},
		{"a pipe", func(e *entry) {
			e.CommonProperties.UpstreamRemoteAddress = &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: "10.0.0.11"}}}
		}, func(c *router.Completion) { c.Upstream = "" }},
		{"attempts", func(e *entry) { e.CommonProperties.UpstreamRequestAttemptCount = 3 }, func(c *router.Completion) { c.Attempts = 3 }},
		{"attempts beyond measure", func(e *entry) { e.CommonProperties.UpstreamRequestAttemptCount = 1<<32 - 1 }, func(c *router.Completion) { c.Attempts = 1 << 20 }},
		{"a status beyond measure", func(e *entry) { e.Response.ResponseCode = wrapperspb.UInt32(1<<32 - 1) }, func(c *router.Completion) { c.Code = 999 }},
		{"empty", func(e *entry) { proto.Reset(e) }, func(c *router.Completion) { *c = router.Completion{} }},
		{"no metadata", func(e *entry) { e.CommonProperties.Metadata = nil }, func(c *router.Completion) { *c = router.Completion{} }},
		{"another filter's metadata", func(e *entry) {
			m := e.CommonProperties.Metadata.FilterMetadata
			m["other"], m[envoy.MetadataNamespace] = m[envoy.MetadataNamespace], nil
		}, func(c *router.Completion) { *c = router.Completion{} }},
		{"nothing chosen", func(e *entry) { set(e, envoy.KeyEndpoint, structpb.NewStringValue("")) }, func(c *router.Completion) { *c = router.Completion{} }},
		{"no id", func(e *entry) { set(e, envoy.KeyDecisionID, nil) }, func(c *router.Completion) { *c = router.Completion{} }},
		{"id is a number", func(e *entry) { set(e, envoy.KeyDecisionID, structpb.NewNumberValue(7)) }, func(c *router.Completion) { *c = router.Completion{} }},
		{"id beyond measure", func(e *entry) { set(e, envoy.KeyDecisionID, structpb.NewStringValue(strings.Repeat("a", maxName+1))) }, func(c *router.Completion) { *c = router.Completion{} }},
		{"pool beyond measure", func(e *entry) { set(e, envoy.KeyPool, structpb.NewStringValue(strings.Repeat("a", maxName+1))) }, func(c *router.Completion) { *c = router.Completion{} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := router.Completion{ID: "r1-7", Pool: "chat", Upstream: upstream, Attempts: 1, Code: 200, Answered: true}
			tt.want(&want)
			got, err := decodeRecords(encode(t, logOf(entryOf(decided(), upstream, tt.change))))
			if d := cmp.Diff([]router.Completion{want}, got); err != nil || d != "" {
				t.Errorf("error %v (-want +got):\n%s", err, d)
			}
		})
	}
}

func set(e *entry, key string, v *structpb.Value) {
	fields := e.CommonProperties.Metadata.FilterMetadata[envoy.MetadataNamespace].Fields
	if fields[key] = v; v == nil {
		delete(fields, key)
	}
}

func TestDecodeRecordMessages(t *testing.T) {
	whole := encode(t, logOf(entryOf(decided(), "10.0.0.11:8000", nil), entryOf(decided(), "10.0.0.12:8000", nil)))
	tests := []struct {
		name    string
		message []byte
		records int
		fails   bool
	}{
		{"nothing", nil, 0, false},
		{"two records", whole, 2, false},
		{"two messages in one", append(append([]byte(nil), whole...), whole...), 4, false},
		{"TCP connections", encode(t, &accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_TcpLogs{
			TcpLogs: &accesslogv3.StreamAccessLogsMessage_TCPAccessLogEntries{LogEntry: []*datav3.TCPAccessLogEntry{{}, {}}},
		}}), 0, false},
		{"name of the log only", encode(t, &accesslogv3.StreamAccessLogsMessage{Identifier: &accesslogv3.StreamAccessLogsMessage_Identifier{LogName: "kvsteer"}}), 0, false},
		{"empty records", []byte{0x12, 6, 0x0a, 0, 0x0a, 0, 0x0a, 0}, 3, false},
		{"fields of other wire types", []byte{0x10, 1, 0x15, 0, 0, 0, 0, 0x12, 0}, 0, false},
		{"cut off", whole[:len(whole)-1], 0, true},
		{"length beyond the end", []byte{0x12, 0xff, 0xff, 0xff, 0xff, 0x0f}, 0, true},
		{"field number 0", []byte{0x02, 0}, 0, true},
		{"group without an end", []byte{0x13}, 0, true},
		{"varint of 11 bytes", []byte("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), 0, true},
		{"broken within the second record", []byte{0x12, 5, 0x0a, 0, 0x0a, 1, 0x0a}, 1, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decodeRecords(tt.message)
			if len(got) != tt.records || (err != nil) != tt.fails {
				t.Errorf("%d records, error %v, want %d, error %v", len(got), err, tt.records, tt.fails)
			}
		})
	}
}

// slowRecord reads a record from its generated type.
func slowRecord(e *entry) router.Completion {
	common, flags := e.GetCommonProperties(), e.GetCommonProperties().GetResponseFlags()
	kind := common.GetAccessLogType()
	c := router.Completion{Partial: kind != datav3.AccessLogType_NotSet && kind != datav3.AccessLogType_DownstreamEnd}
	fields := common.GetMetadata().GetFilterMetadata()[envoy.MetadataNamespace].GetFields()
	id, pool := fields[envoy.KeyDecisionID].GetStringValue(), fields[envoy.KeyPool].GetStringValue()
	if fields[envoy.KeyEndpoint].GetStringValue() == "" || id == "" || len(id) > maxName || len(pool) > maxName {
		return c
	}
	c.ID, c.Pool = id, pool
	at := common.GetUpstreamRemoteAddress().GetSocketAddress()
	if ip, err := netip.ParseAddr(at.GetAddress()); err == nil && ip.Zone() == "" && at.GetPortValue() > 0 && at.GetPortValue() < 65_536 {
		c.Upstream = netip.AddrPortFrom(ip.Unmap(), uint16(at.GetPortValue())).String()
	}
	c.Attempts = int(min(common.GetUpstreamRequestAttemptCount(), 1<<20))
	c.Code = int(min(e.GetResponse().GetResponseCode().GetValue(), 999))
	c.Answered = e.GetResponse().GetResponseCodeDetails() == "via_upstream"
	c.ConnectFailed = flags.GetUpstreamConnectionFailure()
	byUpstream := flags.GetUpstreamRemoteReset() || flags.GetUpstreamConnectionTermination() || flags.GetUpstreamProtocolError()
	c.Broken = byUpstream && !flags.GetDownstreamConnectionTermination() && !flags.GetDownstreamRemoteReset()
	return c
}

// Whatever bytes come: no panic, and of a message that the generated types can read and write again, the same records as they give.
func FuzzRecords(f *testing.F) {
	d := decided()
	f.Add(encode(f, logOf(entryOf(d, "10.0.0.11:8000", nil))))
	f.Add(encode(f, logOf(entryOf(d, "[::1]:8000", func(e *entry) {
		e.CommonProperties.ResponseFlags = &datav3.ResponseFlags{UpstreamConnectionFailure: true, UpstreamProtocolError: true}
		e.CommonProperties.UpstreamRequestAttemptCount = 2
	}), &entry{})))
	f.Add([]byte{0x12, 4, 0x0a, 0, 0x0a, 0})
	f.Add([]byte{0x13, 0x14, 0x12, 2, 0x0a, 0})
	f.Fuzz(func(t *testing.T, message []byte) {
		records, err := decodeRecords(message)
		if len(records) > len(message)/2 {
			t.Fatalf("%d records in %d bytes", len(records), len(message))
		}
		var m accesslogv3.StreamAccessLogsMessage
		if proto.Unmarshal(message, &m) != nil {
			return
		}
		if err != nil {
			t.Fatalf("a message that the generated types can read: %v", err)
		}
		var want []router.Completion
		for _, e := range m.GetHttpLogs().GetLogEntry() {
			want = append(want, slowRecord(e))
		}
		got, err := decodeRecords(encode(t, &m))
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Fatalf("error %v (-generated +ours):\n%s", err, d)
		}
	})
}

func BenchmarkDecodeRecord(b *testing.B) {
	message := encode(b, logOf(entryOf(decided(), "10.0.0.11:8000", nil)))
	b.ReportAllocs()
	for b.Loop() {
		if err := eachRecord(message, func(router.Completion) {}); err != nil {
			b.Fatal(err)
		}
	}
}
