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
	// keepTokens bounds the buffers kept between batches.
	keepTokens = 1 << 17
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
	cur cursor
	mp  *msgpack.Decoder // reads from cur
	ev  event
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
	d.cur = cursor{b: payload}
	defer d.release()
	var b batch
	code, err := d.peek()
	if err != nil {
		return b, err
	}
	if isMap(code) {
		return b, d.batchMap(&b, apply)
	}
	n, err := d.arrayLen()
	if err != nil {
		return b, err
	}
	if n < 2 {
		return b, fmt.Errorf("batch of %d elements: %w", n, errMalformed)
	}
	if err := d.timestamp(&b); err != nil {
		return b, err
	}
	if err := d.events(apply); err != nil {
		return b, err
	}
	if n > 2 {
		if err := d.rank(&b); err != nil {
			return b, err
		}
	}
	for range max(n-3, 0) {
		if err := d.cur.skip(); err != nil {
			return b, err
		}
	}
	return b, nil
}

func (d *decoder) batchMap(b *batch, apply func(*event)) error {
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
			err = d.timestamp(b)
		case "events":
			found = true
			err = d.events(apply)
		case "data_parallel_rank", "attn_dp_rank":
			err = d.rank(b)
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
	if cap(d.ev.tokens) > keepTokens {
		d.ev.tokens = nil
	}
	if cap(d.ev.hashes) > keepTokens {
		d.ev.hashes = nil
	}
}

// timestamp reads the engine's wall clock, a float64 of seconds.
func (d *decoder) timestamp(b *batch) error {
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
		b.published = time.Unix(int64(sec), int64(frac*1e9))
	}
	return nil
}

func (d *decoder) rank(b *batch) error {
	code, err := d.peek()
	if err != nil {
		return err
	}
	if !isInt(code) {
		return d.cur.skip()
	}
	n, err := d.int()
	if err == nil && n >= 0 && n <= math.MaxInt32 {
		b.rank = int(n)
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

// event decodes the next event into d.ev.
func (d *decoder) event() error {
	code, err := d.peek()
	switch {
	case err != nil:
		return err
	case isArray(code):
		return d.eventArray()
	case isMap(code):
		return d.eventMap()
	}
	return errMalformed
}

func (d *decoder) eventArray() error {
	n, err := d.arrayLen()
	if err != nil {
		return err
	}
	if n < 1 {
		return errMalformed
	}
	tag, err := d.text()
	if err != nil {
		return err
	}
	kind := kindOf(tag)
	d.ev.reset(kind)
	if kind == eventStored && n < 5 || kind == eventRemoved && n < 2 {
		return errMalformed
	}
	for slot := 1; slot < n; slot++ {
		if err := d.field(slotName(kind, slot)); err != nil {
			return err
		}
	}
	return nil
}

// slotName names the field in a slot of an array event, "" when it is not
// known. Releases append fields, and never move one.
func slotName(kind eventKind, slot int) string {
	switch kind {
	case eventStored:
		slots := [...]string{
			1: "block_hashes", 2: "parent_block_hash", 3: "token_ids", 4: "block_size", 5: "lora_id", 6: "medium",
			7: "lora_name", 8: "extra_keys", 9: "group_idx", 10: "kv_cache_spec_kind",
		}
		if slot < len(slots) {
			return slots[slot]
		}
	case eventRemoved:
		slots := [...]string{1: "block_hashes", 2: "medium", 3: "group_idx"}
		if slot < len(slots) {
			return slots[slot]
		}
	}
	return ""
}

func (d *decoder) eventMap() error {
	n, err := d.mapLen()
	if err != nil {
		return err
	}
	start := d.cur.pos
	kind, err := d.kind(n)
	if err != nil {
		return err
	}
	d.cur.pos = start
	d.ev.reset(kind)
	known := kind == eventStored || kind == eventRemoved
	hashes := false
	for range n {
		key, err := d.key()
		if err != nil {
			return err
		}
		if !known {
			key = nil
		}
		hashes = hashes || string(key) == "block_hashes"
		if err := d.field(string(key)); err != nil {
			return err
		}
	}
	if known && !hashes {
		return errMalformed
	}
	return nil
}

// kind finds the tag among the n keys of a map event. It comes first in what
// engines send, but nothing promises that.
func (d *decoder) kind(n int) (eventKind, error) {
	for range n {
		key, err := d.key()
		if err != nil {
			return 0, err
		}
		if string(key) == "type" {
			tag, err := d.text()
			return kindOf(tag), err
		}
		if err := d.cur.skip(); err != nil {
			return 0, err
		}
	}
	return 0, errMalformed
}

func kindOf(tag []byte) eventKind {
	switch string(tag) {
	case "BlockStored":
		return eventStored
	case "BlockRemoved":
		return eventRemoved
	case "AllBlocksCleared":
		return eventCleared
	}
	return eventUnknown
}

// field decodes the value of the named field into d.ev, or skips it.
func (d *decoder) field(name string) (err error) {
	e := &d.ev
	switch name {
	case "block_hashes":
		err = d.hashes()
	case "parent_block_hash":
		if e.hasParent = !d.null(); e.hasParent {
			e.parent, err = d.hash()
		}
	case "token_ids":
		err = d.tokenIDs()
	case "block_size":
		if !d.null() {
			e.blockSize, err = d.uint()
		}
	case "lora_id":
		if e.loraID = !d.null(); e.loraID {
			err = d.cur.skip()
		}
	case "medium":
		e.medium, err = d.optionalText()
	case "lora_name":
		err = d.loraName()
	case "cache_salt":
		e.salt, err = d.optionalText()
	case "extra_keys":
		if e.hasExtra = !d.null(); e.hasExtra {
			start := d.cur.pos
			err = d.cur.skip()
			e.extra = d.cur.b[start:d.cur.pos]
		}
	case "group_idx":
		if e.hasGroup = !d.null(); e.hasGroup {
			e.group, err = d.int()
		}
	case "kv_cache_spec_kind":
		e.spec, err = d.optionalText()
	case "locality":
		e.locality, err = d.optionalText()
	case "ownership":
		e.ownership, err = d.optionalText()
	default:
		err = d.cur.skip()
	}
	return err
}

// loraName reads slot 7, which in SGLang 0.5.18 and 0.5.19 is not the
// adapter's name but a map {"cache_salt": salt}.
func (d *decoder) loraName() (err error) {
	code, err := d.peek()
	if err != nil {
		return err
	}
	if !isMap(code) {
		d.ev.loraName, err = d.optionalText()
		return err
	}
	n, err := d.mapLen()
	if err != nil {
		return err
	}
	for range n {
		key, err := d.key()
		if err != nil {
			return err
		}
		if string(key) == "cache_salt" {
			d.ev.salt, err = d.optionalText()
		} else {
			err = d.cur.skip()
		}
		if err != nil {
			return err
		}
	}
	return nil
}
