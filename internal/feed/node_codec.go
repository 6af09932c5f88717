package feed

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// codec is gRPC's codec for protobuf that takes messages that are encoded already: one that goes to many routers is encoded once. What a received message
// has beside what is known is not kept.
type codec struct{}

// encoded is such a message.
type encoded []byte

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case encoded:
		return mem.BufferSlice{mem.SliceBuffer(m)}, nil
	case proto.Message:
		data, err := proto.Marshal(m)
		return mem.BufferSlice{mem.SliceBuffer(data)}, err
	}
	return nil, fmt.Errorf("encode a message of type %T", v)
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("decode a message of type %T", v)
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	return proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(buffer.ReadOnlyData(), m)
}

// Name is what the content type of such calls says.
func (codec) Name() string { return "proto" }
