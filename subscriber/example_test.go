package subscriber_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/kvsteer/kvsteer/subscriber"
)

// printer is a Sink that prints how many blocks come and go.
type printer struct{ stored chan struct{} }

func (p printer) Store(tier subscriber.Tier, keys []uint64) {
	if tier == subscriber.Device {
		fmt.Println("stored", len(keys))
		close(p.stored)
	}
}
func (printer) Remove(subscriber.Tier, []uint64) {}
func (printer) Reset(cause subscriber.Cause)     { fmt.Println("reset:", cause) }
func (printer) Describe(d subscriber.Description) {
	fmt.Println("connected:", d.Connected, "block size:", d.BlockSize)
}

// An engine connects, announces two blocks of two tokens each, and the subscriber is stopped.
func Example() {
	sink := printer{stored: make(chan struct{})}
	s, err := subscriber.New(subscriber.Options{
		Pool:     "chat",
		Endpoint: "127.0.0.1:8001",
		Listen:   "tcp://127.0.0.1:0",
		Sink:     sink,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()

	engine := zmq4.NewPub(context.Background())
	defer engine.Close()
	poll(func() bool { return s.Addr() != "" && engine.Dial(s.Addr()) == nil })
	poll(func() bool { return len(engine.(zmq4.Topics).Topics()) > 0 })

	batch := binary.BigEndian.AppendUint64([]byte{0x93, 0xcb}, math.Float64bits(1795966233.32))
	batch = append(batch, 0x91, 0x98) // one event, an array of eight
	batch = append(batch, "\xabBlockStored"...)
	batch = append(batch, 0x92, 0x11, 0x12)             // engine hashes
	batch = append(batch, 0xc0)                         // no parent
	batch = append(batch, 0x94, 0x01, 0x02, 0x03, 0x04) // token ids
	batch = append(batch, 0x02, 0xc0)                   // block size, no adapter
	batch = append(batch, "\xa3GPU"...)
	batch = append(batch, 0xc0, 0x00) // no adapter name, rank 0
	_ = engine.SendMulti(zmq4.NewMsgFrom([]byte("kv-events"), make([]byte, 8), batch))

	<-sink.stored
	cancel()
	fmt.Println("ended:", <-ended)
	// Output:
	// connected: true block size: 0
	// connected: true block size: 2
	// stored 2
	// connected: false block size: 2
	// reset: disconnect
	// connected: false block size: 0
	// ended: <nil>
}

func poll(done func() bool) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		<-tick.C
	}
}
