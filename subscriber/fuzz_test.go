package subscriber

import (
	"bytes"
	"encoding/hex"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// FuzzBatch checks for any bytes that
//
//   - a batch is read to its end exactly when the msgpack module can skip what
//     it consists of, with one event per element, whatever is wrong in them;
//   - folding it twice, with time passing between, breaks no promise of Sink,
//     leaves the mirror's books right and within its bound.
func FuzzBatch(f *testing.F) {
	for _, file := range goldenFiles(f, "testdata/encodings/*.json") {
		var encoding struct{ Cases []struct{ Payload string } }
		readJSON(f, file, &encoding)
		for _, c := range encoding.Cases {
			payload, err := hex.DecodeString(c.Payload)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(payload)
		}
	}
	for _, file := range goldenFiles(f, "testdata/events/*/3*.json") {
		var r recording
		readJSON(f, file, &r)
		for _, m := range r.Messages {
			f.Add(m.payload(f))
		}
	}
	f.Add(packBatch(st("a", "bc"), st("c", "a"), st("", "a"), rm("b"), known("CPU", "c"), clearedEvent(), st("", "a")))
	f.Add(packBatch(st("", "ab"), st("a", "b").with("token_ids", letterTokens("x")), st("", "a").with("group_idx", 9)))
	f.Add(packBatch(st("", "ab"), st("", "ab"), known("CPU", "a"), known("DISK", "b"), rm("ba"), known("CPU", "b"), st("b", "c"), rm("c")))
	f.Add(pack(fields{{"events", []any{st("", "a")}}, {"ts", 1}}))

	f.Fuzz(func(t *testing.T, payload []byte) {
		if len(payload) > 1<<16 { // the module skips by recursion
			return
		}
		const maxBlocks = 16
		sink := newCheckedSink(t)
		fold := newFold(foldOptions{pool: "chat", sink: sink, maxBlocks: maxBlocks, demote: time.Minute})
		now := time.Unix(1_000, 0)
		wantEvents, wantOK, isBatch := skipBatch(payload)
		for range 2 {
			sink.begin()
			before := sink.calls
			stats, err := fold.fold(payload, now)
			if isBatch && (err == nil) != wantOK {
				t.Fatalf("error %v, want it readable: %v", err, wantOK)
			}
			if stats.blocks > maxBlocks || stats.orphans < 0 || stats.orphans > stats.blocks {
				t.Fatalf("%d blocks, %d orphans", stats.blocks, stats.orphans)
			}
			if checkErr := fold.mirror.check(); checkErr != nil {
				t.Fatal(checkErr)
			}
			if err != nil {
				if sink.calls != before {
					t.Fatal("the sink was told of an unreadable batch")
				}
				fold.reset(CauseUnreadable)
				continue
			}
			events := 0
			for _, n := range stats.events {
				events += n
			}
			if isBatch && events != wantEvents {
				t.Fatalf("%d events, want %d", events, wantEvents)
			}
			if len(sink.tiers[Device]) > len(sink.tiers[Any]) || len(sink.tiers[Any]) != fold.mirror.prints.sent {
				t.Fatalf("%d in Device, %d in Any, %d counted", len(sink.tiers[Device]), len(sink.tiers[Any]), fold.mirror.prints.sent)
			}
			now = now.Add(time.Minute)
			sink.begin()
			fold.tick(now)
			if err := fold.mirror.check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// skipBatch takes a batch apart by the msgpack module alone. isBatch is false
// when the payload does not begin like an array batch of two or more.
func skipBatch(payload []byte) (events int, ok, isBatch bool) {
	dec := msgpack.NewDecoder(bytes.NewReader(payload))
	code, err := dec.PeekCode()
	if err != nil || !isArray(code) {
		return 0, false, false
	}
	n, err := dec.DecodeArrayLen()
	if err != nil || n < 2 {
		return 0, false, false
	}
	if dec.Skip() != nil {
		return 0, false, true
	}
	code, err = dec.PeekCode()
	if err != nil || !isArray(code) || code == msgpcode.Nil {
		return 0, false, true
	}
	if events, err = dec.DecodeArrayLen(); err != nil {
		return 0, false, true
	}
	for range events + n - 2 {
		if dec.Skip() != nil {
			return 0, false, true
		}
	}
	return events, true, true
}
