package subscriber

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// recording is one file of testdata/events.
type recording struct {
	Messages []recordedMessage
	Decoded  []decodedMessage
	Ranks    map[string]struct {
		Messages []recordedMessage
		Decoded  []decodedMessage
	}
	Replays map[string]json.RawMessage // 20 and 38 only
}

// fromZero returns the batches of the replay that was asked from 0.
func (r recording) fromZero(t testing.TB) []recordedMessage {
	t.Helper()
	var replay struct{ Replies []recordedMessage }
	if err := json.Unmarshal(r.Replays["from_0"], &replay); err != nil {
		t.Fatal(err)
	}
	if len(replay.Replies) < 2 {
		t.Fatalf("%d replies", len(replay.Replies))
	}
	return replay.Replies[:len(replay.Replies)-1] // without the end marker
}

// endMarker returns the last reply to the replay that was asked from 0.
func (r recording) endMarker(t testing.TB) recordedMessage {
	t.Helper()
	var replay struct{ Replies []recordedMessage }
	if err := json.Unmarshal(r.Replays["from_0"], &replay); err != nil {
		t.Fatal(err)
	}
	return replay.Replies[len(replay.Replies)-1]
}

// onWire returns the bytes of a recorded message on the wire.
func onWire(t testing.TB, m recordedMessage) []byte {
	t.Helper()
	var frames []string
	for _, f := range m.Frames {
		frames = append(frames, string(unhex(t, f)))
	}
	return message(frames...)
}

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

type recordedMessage struct{ Frames []string }

type decodedMessage struct {
	Seq   int64
	Batch []any
}

// payload is the last frame; the sequence number stands before it.
func (m recordedMessage) payload(t testing.TB) []byte {
	t.Helper()
	b, err := hex.DecodeString(m.Frames[len(m.Frames)-1])
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func goldenFiles(t testing.TB, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatalf("no files match %s", pattern)
	}
	slices.Sort(files)
	return files
}

// furtherFiles are recordings beyond those of the repository, when
// KVSTEER_GOLDEN names a folder of them.
func furtherFiles(t testing.TB, pattern string) []string {
	t.Helper()
	folder := os.Getenv("KVSTEER_GOLDEN")
	if folder == "" {
		return nil
	}
	return goldenFiles(t, filepath.Join(folder, pattern))
}

// readJSON keeps numbers as text: hashes exceed a float64.
func readJSON(t testing.TB, file string, v any) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(strings.NewReader(string(b)))
	dec.UseNumber()
	if err := dec.Decode(v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// engineCache folds decoded events the obvious way: copies per hash, and the
// chain of every hash ever stored.
type engineCache struct {
	copies map[uint64]int
	keys   map[uint64]uint64 // fingerprint by engine hash
	parent map[uint64]uint64 // of fingerprints; absent for first blocks
	above  map[uint64]uint64 // of engine hashes
}

func newEngineCache() *engineCache {
	return &engineCache{map[uint64]int{}, map[uint64]uint64{}, map[uint64]uint64{}, map[uint64]uint64{}}
}

func (c *engineCache) parentOf(key uint64) (uint64, bool) {
	p, ok := c.parent[key]
	return p, !ok
}

// named turns an array event into a map.
func named(t testing.TB, e any) map[string]any {
	t.Helper()
	switch e := e.(type) {
	case map[string]any:
		return e
	case []any:
		names := map[string][]string{
			"BlockStored": {
				"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
				"lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
			},
			"BlockRemoved":     {"type", "block_hashes", "medium", "group_idx"},
			"AllBlocksCleared": {"type"},
		}[e[0].(string)]
		m := map[string]any{}
		for i, v := range e {
			m[names[i]] = v
		}
		return m
	}
	t.Fatalf("event is a %T", e)
	return nil
}

func (c *engineCache) apply(t testing.TB, event any) {
	e := named(t, event)
	switch e["type"] {
	case "AllBlocksCleared":
		clear(c.copies)
	case "BlockRemoved":
		for _, h := range e["block_hashes"].([]any) {
			if c.copies[wantHash(t, h)]--; c.copies[wantHash(t, h)] < 0 {
				t.Fatal("more removals than stores")
			}
		}
	case "BlockStored":
		size := int(wantInt(t, e["block_size"]))
		tokens := wantTokens(t, e["token_ids"])
		extras, _ := e["extra_keys"].([]any)
		lora, _ := e["lora_name"].(string)
		for i, h := range e["block_hashes"].([]any) {
			hash := wantHash(t, h)
			c.copies[hash]++
			content := blockhash.Content(tokens[i*size:(i+1)*size], nil)
			switch {
			case i > 0:
				c.above[hash] = wantHash(t, e["block_hashes"].([]any)[i-1])
			case e["parent_block_hash"] != nil:
				c.above[hash] = wantHash(t, e["parent_block_hash"])
			default:
				salt := ""
				if extra, _ := extras[0].([]any); len(extra) > 0 {
					if last := extra[len(extra)-1].(string); len(extra) == 2 || lora == "" {
						salt = last
					}
				}
				root := blockhash.Namespace{Pool: "chat", Adapter: lora, BlockSize: size, Salt: salt}.Root()
				c.keys[hash] = blockhash.Chain(root, content)
				continue
			}
			c.keys[hash] = blockhash.Chain(c.keys[c.above[hash]], content)
			c.parent[c.keys[hash]] = c.keys[c.above[hash]]
		}
	}
}

// announced is the set of fingerprints whose blocks and ancestors are there.
func (c *engineCache) announced() map[uint64]bool {
	out := map[uint64]bool{}
	for hash, n := range c.copies {
		whole := n > 0
		for h, ok := c.above[hash]; ok && whole; h, ok = c.above[h] {
			whole = c.copies[h] > 0
		}
		if whole {
			out[c.keys[hash]] = true
		}
	}
	return out
}

func wantHash(t testing.TB, v any) uint64 {
	t.Helper()
	if m, ok := v.(map[string]any); ok {
		var d blockhash.Digest
		if _, err := hex.Decode(d[:], []byte(m["bin"].(string))); err != nil {
			t.Fatal(err)
		}
		return d.Uint64()
	}
	return wantInt(t, v)
}

// wantInt reads a signed or unsigned number as its 64 bits.
func wantInt(t testing.TB, v any) uint64 {
	t.Helper()
	var u uint64
	var i int64
	n := v.(json.Number)
	if json.Unmarshal([]byte(n), &u) == nil {
		return u
	}
	if err := json.Unmarshal([]byte(n), &i); err != nil {
		t.Fatal(err)
	}
	return uint64(i)
}

func wantTokens(t testing.TB, v any) []uint32 {
	t.Helper()
	var out []uint32
	for _, x := range v.([]any) {
		out = append(out, uint32(wantInt(t, x)))
	}
	return out
}

// TestRecordedStreams folds the recordings of each engine process in their
// order. After every batch the announced set is that of an obvious fold of the
// decoded events, in both tiers, with every step prefix-closed.
//
// In 13_report_mode_full the engine announces again what it holds and never
// removes that twice, so that file adds no copies.
func TestRecordedStreams(t *testing.T) {
	streams := []struct {
		name    string
		pattern string
		exclude []string
		again   []int64 // messages that announce again what is held
		most    int     // copies at most
	}{
		{"0.32.0 first engine", "testdata/events/vllm-0.32.0/[01]*.json", []string{"17_"}, []int64{24}, 69},
		{"0.32.0 second engine", "testdata/events/vllm-0.32.0/3*.json", nil, nil, 23}, // all of its usable blocks
		{"0.23.0", "testdata/events/vllm-0.23.0/*.json", nil, nil, 28},                // the others of 31 never filled
	}
	for _, s := range streams {
		t.Run(s.name, func(t *testing.T) {
			messages, decoded := readStream(t, s.pattern, s.exclude...)
			_, sink, most := foldRecorded(t, messages, decoded, s.again...)
			if most != s.most {
				t.Errorf("%d copies at most, want %d", most, s.most)
			}
			want := Description{BlockSize: 32, ExtraKeys: true}
			if sink.last() != want {
				t.Errorf("described as %+v, want %+v", sink.last(), want)
			}
		})
	}
}

// readStream returns what one engine process sent, by sequence.
func readStream(t *testing.T, pattern string, exclude ...string) (messages []recordedMessage, decoded []decodedMessage) {
	t.Helper()
	bySeq := map[int64]recordedMessage{}
	for _, file := range goldenFiles(t, pattern) {
		if slices.ContainsFunc(exclude, func(x string) bool { return strings.HasPrefix(filepath.Base(file), x) }) {
			continue
		}
		var r recording
		readJSON(t, file, &r)
		for i, m := range r.Messages {
			bySeq[r.Decoded[i].Seq] = m
			decoded = append(decoded, r.Decoded[i])
		}
	}
	slices.SortFunc(decoded, func(a, b decodedMessage) int { return int(a.Seq - b.Seq) })
	for i, d := range decoded {
		if int64(i) != d.Seq {
			t.Fatalf("%s: sequence %d is missing", pattern, i)
		}
		messages = append(messages, bySeq[d.Seq])
	}
	return messages, decoded
}

// foldRecorded folds one stream and compares after every batch. The messages
// again announce what is held already. most is the
// largest number of copies after any.
func foldRecorded(t *testing.T, messages []recordedMessage, decoded []decodedMessage, again ...int64) (f *fold, sink *checkedSink, most int) {
	t.Helper()
	if len(messages) == 0 || len(messages) != len(decoded) {
		t.Fatalf("%d messages, %d decoded", len(messages), len(decoded))
	}
	cache := newEngineCache()
	sink = newCheckedSink(t)
	sink.parentOf = cache.parentOf
	f = newFold(foldOptions{pool: "chat", sink: sink})
	for i, m := range messages {
		if i > 0 && decoded[i].Seq <= decoded[i-1].Seq { // restarted
			f.reset(CauseBackwards)
			clear(cache.copies)
		}
		for _, e := range decoded[i].Batch[1].([]any) {
			if !slices.Contains(again, decoded[i].Seq) {
				cache.apply(t, e)
			}
		}
		sink.begin()
		stats, err := f.fold(m.payload(t), time.Time{})
		if err != nil {
			t.Fatalf("seq %d: %v", decoded[i].Seq, err)
		}
		if stats.events[eventMalformed]+stats.events[eventUnknown] > 0 || stats.dropped != [drops]int{} {
			t.Fatalf("seq %d: %+v", decoded[i].Seq, stats)
		}
		ts, _ := decoded[i].Batch[0].(json.Number).Float64()
		if got := float64(stats.published.UnixNano()) / 1e9; got < ts-1e-3 || got > ts+1e-3 {
			t.Errorf("seq %d: published %v, want %v", decoded[i].Seq, got, ts)
		}
		want := cache.announced()
		if d := cmp.Diff(want, sink.tiers[Device]); d != "" {
			t.Fatalf("seq %d: device (-engine +mirror):\n%s", decoded[i].Seq, d)
		}
		if d := cmp.Diff(want, sink.tiers[Any]); d != "" {
			t.Fatalf("seq %d: any (-engine +mirror):\n%s", decoded[i].Seq, d)
		}
		copies := 0
		for hash, n := range cache.copies {
			copies += n
			id := f.mirror.byHash.get(hash)
			if got := int(f.mirror.blocks[id].copies.count); id != 0 && got != n || id == 0 && n > 0 {
				t.Fatalf("seq %d: hash %x has %d copies, want %d", decoded[i].Seq, hash, got, n)
			}
		}
		most = max(most, copies)
		if err := f.mirror.check(); err != nil {
			t.Fatalf("seq %d: %v", decoded[i].Seq, err)
		}
	}
	return f, sink, most
}

// TestRecordedRestart: the sequence falls back to 0 with the second message.
func TestRecordedRestart(t *testing.T) {
	var r recording
	readJSON(t, "testdata/events/vllm-0.32.0/17_engine_restart.json", &r)
	_, sink, _ := foldRecorded(t, r.Messages, r.Decoded)
	if d := cmp.Diff([]Cause{CauseBackwards}, sink.resets); d != "" {
		t.Error(d)
	}
	if len(sink.tiers[Device]) != 2 {
		t.Errorf("%d blocks announced, want 2", len(sink.tiers[Device]))
	}
}

// TestRecordedRanks: each data-parallel rank is a source of its own.
func TestRecordedRanks(t *testing.T) {
	var r recording
	readJSON(t, "testdata/events/vllm-0.32.0/40_data_parallel_2.json", &r)
	for name, want := range map[string]int{"rank0": 4, "rank1": 10} {
		rank := r.Ranks[name]
		f, sink, _ := foldRecorded(t, rank.Messages, rank.Decoded)
		if got := len(sink.tiers[Device]); got != want {
			t.Errorf("%s: %d blocks announced, want %d", name, got, want)
		}
		if got := "rank" + string(rune('0'+f.stats.rank)); got != name {
			t.Errorf("%s: batches of %s", name, got)
		}
	}
}

// TestRecordedReplays: a replay from 0 leaves the mirror that the live stream
// left, where the engine's buffer still reaches back to 0.
func TestRecordedReplays(t *testing.T) {
	for _, c := range []struct {
		name, live, replay string
		exclude            []string
	}{
		{"0.32.0", "testdata/events/vllm-0.32.0/[01]*.json", "testdata/events/vllm-0.32.0/20_replay.json", []string{"17_", "18_", "19_"}},
		{"0.23.0", "testdata/events/vllm-0.23.0/*.json", "testdata/events/vllm-0.23.0/20_replay.json", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			live := newFold(foldOptions{pool: "chat", sink: newCheckedSink(t)})
			messages, _ := readStream(t, c.live, c.exclude...)
			foldAll(t, live, messages)
			var r recording
			readJSON(t, c.replay, &r)
			replayed := newFold(foldOptions{pool: "chat", sink: newCheckedSink(t)})
			foldAll(t, replayed, r.fromZero(t))
			want := live.o.sink.(*checkedSink).tiers
			if d := cmp.Diff(want, replayed.o.sink.(*checkedSink).tiers); d != "" {
				t.Errorf("(-live +replayed):\n%s", d)
			}
		})
	}
}

func foldAll(t *testing.T, f *fold, messages []recordedMessage) {
	t.Helper()
	for i, m := range messages {
		f.o.sink.(*checkedSink).begin()
		if _, err := f.fold(m.payload(t), time.Time{}); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
}

// TestRecordedReplayOverflow: a replay that starts after the buffer's oldest
// batch leaves orphans, which are held and not announced.
func TestRecordedReplayOverflow(t *testing.T) {
	var r recording
	readJSON(t, "testdata/events/vllm-0.32.0/38_replay_buffer_overflow.json", &r)
	sink := newCheckedSink(t)
	f := newFold(foldOptions{pool: "chat", sink: sink})
	foldAll(t, f, r.fromZero(t))
	// The last batch starts with a clear and one first block.
	if len(sink.tiers[Device]) != 1 || f.mirror.orphans() != 0 {
		t.Errorf("%d announced, %d orphans", len(sink.tiers[Device]), f.mirror.orphans())
	}
}
