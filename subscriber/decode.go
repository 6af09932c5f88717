package subscriber

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// Caps of one event. Prompts are keyed up to 262,144 tokens; whatever exceeds
// these is skipped as malformed. Below them a length is still checked against
// the bytes that remain before anything is allocated for it.
const (
	maxEventHashes = 1 << 20
	maxEventTokens = 1 << 22
	// keepBuffer bounds, in elements, the buffers kept between batches.
	keepBuffer = 1 << 17
)

// errMalformed rejects one event. Its bytes can still be skipped: msgpack is
// self-delimiting.
var errMalformed = errors.New("malformed event")

// batch is what stands around the events of one payload.
type batch struct {
	published time.Time
	rank      int
}

// decoder reads batches:
//
//	[ts, events, rank, …]                            rank since vLLM 0.9.1, later elements are ignored
//	{"ts": …, "events": …, "data_parallel_rank": …}  same, keys in any order
//
// and in them events of both generations, decided event by event:
//
//	["BlockStored", hashes, parent, token_ids, block_size, …]         vLLM ≤ 0.23, SGLang ≤ 0.5.19
//	{"type": "BlockStored", "block_hashes": hashes, …}                 later
//
// Unknown tags, keys and slots are skipped.
type decoder struct {
	cur   cursor
	mp    *msgpack.Decoder // reads from cur
	batch batch            // as far as it is read
	ev    event
}

func newDecoder() *decoder {
	d := &decoder{}
	d.init()
	return d
}

func (d *decoder) init() { d.mp = msgpack.NewDecoder(&d.cur) }

// decode calls apply for each event of the payload in order. The event is
// valid during the call. An error means that the framing is broken and that
// events after the last one applied are lost.
func (d *decoder) decode(payload []byte, apply func(*event)) (batch, error) {
	d.batch = batch{}
	err := d.decodeBatch(payload, apply)
	return d.batch, err
}

func (d *decoder) decodeBatch(payload []byte, apply func(*event)) error {
	d.cur = cursor{b: payload}
	defer d.release()
	code, err := d.peek()
	if err != nil {
		return err
	}
	if isMap(code) {
		return d.batchMap(apply)
	}
	n, err := d.arrayLen()
	if err != nil {
		return err
	}
	if n < 2 {
		return fmt.Errorf("batch of %d elements: %w", n, errMalformed)
	}
	if err := d.timestamp(); err != nil {
		return err
	}
	if err := d.events(apply); err != nil {
		return err
	}
	if n > 2 {
		if err := d.rank(); err != nil {
			return err
		}
	}
	for range max(n-3, 0) {
		if err := d.cur.skip(); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) batchMap(apply func(*event)) error {
	n, err := d.mapLen()
	if err != nil {
		return err
	}
	found := false
	for range n {
		key, err := d.key()
		if err != nil {
			return err
		}
		switch string(key) {
		case "ts":
			err = d.timestamp()
		case "events":
			found = true
			err = d.events(apply)
		case "data_parallel_rank", "attn_dp_rank":
			err = d.rank()
		default:
			err = d.cur.skip()
		}
		if err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("batch without events: %w", errMalformed)
	}
	return nil
}

// release lets go of the payload and of buffers that one huge event grew.
func (d *decoder) release() {
	d.cur.b = nil
	d.ev.reset(eventUnknown)
	if cap(d.ev.tokens) > keepBuffer {
		d.ev.tokens = nil
	}
	if cap(d.ev.hashes) > keepBuffer {
		d.ev.hashes = nil
	}
}

// timestamp reads the engine's wall clock, a float64 of seconds.
func (d *decoder) timestamp() error {
	code, err := d.peek()
	if err != nil {
		return err
	}
	if code != msgpcode.Double && code != msgpcode.Float && !isInt(code) {
		return d.cur.skip()
	}
	ts, err := d.mp.DecodeFloat64()
	if err != nil {
		return errTruncated
	}
	if ts > 0 && ts < 1<<33 { // until the year 2242; NaN is neither
		sec, frac := math.Modf(ts)
		d.batch.published = time.Unix(int64(sec), int64(frac*1e9))
	}
	return nil
}

func (d *decoder) rank() error {
	code, err := d.peek()
	if err != nil {
		return err
	}
	if !isInt(code) {
		return d.cur.skip()
	}
	n, err := d.int()
	if err == nil && n >= 0 && n <= math.MaxInt32 {
		d.batch.rank = int(n)
	}
	return err
}

func (d *decoder) events(apply func(*event)) error {
	n, err := d.arrayLen()
	if err != nil {
		return fmt.Errorf("events: %w", err)
	}
	for i := range n {
		start := d.cur.pos
		if err := d.event(); err != nil {
			// Whatever is wrong with the event, its end decides
			// whether the next one can be read.
			d.cur.pos = start
			if err := d.cur.skip(); err != nil {
				return fmt.Errorf("event %d of %d: %w", i, n, err)
			}
			d.ev.reset(eventMalformed)
		}
		apply(&d.ev)
	}
	return nil
}
