package extproc

import (
	"errors"
	"net/netip"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kvsteer/kvsteer/envoy"
	"github.com/kvsteer/kvsteer/internal/router"
)

// Bounds of what is kept of a record.
const (
	maxName    = 256 // bytes of a decision id or the name of a pool
	maxAddress = 64  // bytes of an IP address
)

// viaUpstream is the response code detail of an answer whose status is the upstream's own; Envoy's own answers have others, such as
// upstream_reset_before_response_started{…}.
const viaUpstream = "via_upstream"

var errRecord = errors.New("access log message is not readable")

// Wire types that are read, as the low three bits of a tag.
const (
	varint = uint64(protowire.VarintType)
	length = uint64(protowire.BytesType)
)

// field is one field of a protobuf message.
type field struct {
	tag    uint64 // number<<3 | wire type
	varint uint64 // of a varint field
	bytes  []byte // of a length-delimited field
}

// nextField reads the first field of a message. Fixed-width fields and groups are passed over with their tag alone.
func nextField(b []byte) (f field, rest []byte, err error) {
	number, kind, n := protowire.ConsumeTag(b)
	if n < 0 {
		return field{}, nil, errRecord
	}
	b = b[n:]
	f.tag = protowire.EncodeTag(number, kind)
	switch kind {
	case protowire.VarintType:
		f.varint, n = protowire.ConsumeVarint(b)
	case protowire.BytesType:
		f.bytes, n = protowire.ConsumeBytes(b)
	default:
		n = protowire.ConsumeFieldValue(number, kind, b)
	}
	if n < 0 {
		return field{}, nil, errRecord
	}
	return f, b[n:], nil
}

// eachField calls visit for each field of a message, in order.
func eachField(b []byte, visit func(field) error) error {
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		if err := visit(f); err != nil {
			return err
		}
		b = rest
	}
	return nil
}

// eachRecord calls do for each record of a StreamAccessLogsMessage. Records of TCP connections are none.
func eachRecord(message []byte, do func(router.Completion)) error {
	return eachField(message, func(f field) error {
		if f.tag != 2<<3|length { // http_logs
			return nil
		}
		return eachField(f.bytes, func(f field) error {
			if f.tag != 1<<3|length { // log_entry
				return nil
			}
			var r record
			if err := r.read(f.bytes); err != nil {
				return err
			}
			do(r.completion())
			return nil
		})
	})
}

// record is what is read of an HTTPAccessLogEntry. Slices point into the message.
type record struct {
	id, pool, endpoint []byte // of the decision
	kind               uint64 // access_log_type
	address            []byte // upstream_remote_address
	port               uint64
	attempts           uint64
	code               uint64
	details            []byte
	connectFailed      bool
	broken             bool // by the upstream's side
	left               bool // by the client
}

// Numbers of envoy.data.accesslog.v3.AccessLogType.
const (
	kindNotSet        = 0
	kindDownstreamEnd = 6
)

func (r *record) completion() router.Completion {
	c := router.Completion{Partial: r.kind != kindNotSet && r.kind != kindDownstreamEnd}
	if len(r.endpoint) == 0 || len(r.id) == 0 || len(r.id) > maxName || len(r.pool) > maxName {
		return c // without a decision, or with one that chose nothing
	}
	c.ID, c.Pool = string(r.id), string(r.pool)
	c.Upstream = r.upstream()
	c.Attempts = int(min(r.attempts, 1<<20))
	c.Code = int(min(r.code, 999))
	c.Answered = string(r.details) == viaUpstream
	c.ConnectFailed = r.connectFailed
	c.Broken = r.broken && !r.left
	return c
}

// upstream is the address in the form of endpoints' addresses; "" for what is not an IP address and port.
func (r *record) upstream() string {
	if len(r.address) > maxAddress || r.port == 0 || r.port > 65_535 {
		return ""
	}
	ip, err := netip.ParseAddr(string(r.address))
	if err != nil || ip.Zone() != "" {
		return ""
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(r.port)).String()
}

func (r *record) read(entry []byte) error {
	return eachField(entry, func(f field) error {
		switch f.tag {
		case 1<<3 | length: // common_properties
			return eachField(f.bytes, r.common)
		case 4<<3 | length: // response
			return eachField(f.bytes, r.response)
		}
		return nil
	})
}

// common reads a field of AccessLogCommon.
func (r *record) common(f field) error {
	switch f.tag {
	case 13<<3 | length: // upstream_remote_address
		return eachField(f.bytes, r.upstreamAddress)
	case 16<<3 | length: // response_flags
		return eachField(f.bytes, r.flag)
	case 17<<3 | length: // metadata
		return eachField(f.bytes, r.metadata)
	case 24<<3 | varint: // upstream_request_attempt_count
		r.attempts = f.varint
	case 33<<3 | varint: // access_log_type
		r.kind = f.varint
	}
	return nil
}

// upstreamAddress reads a field of an Address.
func (r *record) upstreamAddress(f field) error {
	if f.tag != 1<<3|length { // socket_address
		return nil
	}
	return eachField(f.bytes, func(f field) error {
		switch f.tag {
		case 2<<3 | length: // address
			r.address = f.bytes
		case 3<<3 | varint: // port_value
			r.port = f.varint
		}
		return nil
	})
}

// flag reads a field of ResponseFlags.
func (r *record) flag(f field) error {
	switch on := f.varint != 0; f.tag {
	case 6<<3 | varint: // upstream_connection_failure
		r.connectFailed = on
	case 5<<3 | varint, 7<<3 | varint, 24<<3 | varint: // upstream_remote_reset, upstream_connection_termination, upstream_protocol_error
		r.broken = r.broken || on
	case 15<<3 | varint, 28<<3 | varint: // downstream_connection_termination, downstream_remote_reset
		r.left = r.left || on
	}
	return nil
}

// metadata reads a field of Metadata: an entry of the map from namespaces to structs.
func (r *record) metadata(f field) error {
	if f.tag != 1<<3|length { // filter_metadata
		return nil
	}
	namespace, value, err := mapEntry(f.bytes)
	if err != nil || string(namespace) != envoy.MetadataNamespace {
		return err
	}
	return eachField(value, func(f field) error {
		if f.tag != 1<<3|length { // fields
			return nil
		}
		key, value, err := mapEntry(f.bytes)
		if err != nil {
			return err
		}
		switch string(key) {
		case envoy.KeyDecisionID:
			return text(value, &r.id)
		case envoy.KeyPool:
			return text(value, &r.pool)
		case envoy.KeyEndpoint:
			return text(value, &r.endpoint)
		}
		return nil
	})
}

// mapEntry reads key and value of a map's entry.
func mapEntry(b []byte) (key, value []byte, err error) {
	err = eachField(b, func(f field) error {
		switch f.tag {
		case 1<<3 | length:
			key = f.bytes
		case 2<<3 | length:
			value = f.bytes
		}
		return nil
	})
	return key, value, err
}

// text reads a Value that is a string.
func text(value []byte, into *[]byte) error {
	return eachField(value, func(f field) error {
		if f.tag == 3<<3|length { // string_value
			*into = f.bytes
		}
		return nil
	})
}

// response reads a field of HTTPResponseProperties.
func (r *record) response(f field) error {
	switch f.tag {
	case 1<<3 | length: // response_code, in a message of its own
		return eachField(f.bytes, func(f field) error {
			if f.tag == 1<<3|varint {
				r.code = f.varint
			}
			return nil
		})
	case 6<<3 | length: // response_code_details
		r.details = f.bytes
	}
	return nil
}
