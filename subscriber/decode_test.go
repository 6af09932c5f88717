package subscriber

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"
)

func raw(t testing.TB, hexes ...string) msgpack.RawMessage {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(strings.Join(hexes, ""), " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestDecodeEvent decodes one odd event between two good ones: whatever it is,
// they must come through.
func TestDecodeEvent(t *testing.T) {
	stored := storedEvent(nil, 4, []uint32{1, 2, 3, 4}, 7)
	array := []any{"BlockStored", []uint64{7}, nil, []uint32{1, 2, 3, 4}, 4, nil, "GPU", nil, []any{nil}, 0, "full_attention", nil}
	want := plainEvent{
		Kind: "stored", Hashes: []uint64{7}, Parent: "nil", Tokens: []uint32{1, 2, 3, 4}, BlockSize: 4, Extra: "[null]",
		Medium: "GPU", Group: "0", Spec: "full_attention", LoraID: "nil",
	}
	malformed := plainEvent{Kind: "malformed", Parent: "nil", Extra: "null", Group: "nil", LoraID: "nil"}
	unknown := plainEvent{Kind: "unknown", Parent: "nil", Extra: "null", Group: "nil", LoraID: "nil"}
	change := func(f func(*plainEvent)) plainEvent { w := want; f(&w); return w }
	slot := func(i int, v any) []any {
		out := append([]any(nil), array...)
		out[i] = v
		return out
	}
	deep := append(bytes.Repeat([]byte{0x91}, 100_000), 0xc0)

	tests := []struct {
		name  string
		event any
		want  plainEvent
	}{
		{"map", stored, want},
		{"array", array, want},
		{"array with slots of later releases", append(append([]any(nil), array...), "x", fields{{"y", 1}}), want},
		{"type last", append(stored.without("type"), kv{"type", "BlockStored"}), want},
		{"map16", raw(t, "de000b", hex.EncodeToString(pack(stored)[1:])), want},
		{"map32", raw(t, "df0000000b", hex.EncodeToString(pack(stored)[1:])), want},
		{"array16", raw(t, "dc000c", hex.EncodeToString(pack(array)[1:])), want},
		{"unknown field", stored.with("session_id", "s"), want},
		{"unknown field, deep", stored.with("session_id", msgpack.RawMessage(deep)), want},
		{"unknown field, extension", stored.with("session_id", raw(t, "d6ff00000000")), want},
		{"key that is no text", append(fields{}, append(stored, kv{"", 0})...), want},
		{"key twice", stored.with("block_hashes", []uint64{7}).with("x", 1), want},
		{"signed hash", stored.with("block_hashes", []any{int64(-2)}), change(func(p *plainEvent) { p.Hashes = []uint64{1<<64 - 2} })},
		{"int8 hash", stored.with("block_hashes", []any{raw(t, "d0fe")}), change(func(p *plainEvent) { p.Hashes = []uint64{1<<64 - 2} })},
		{"int16 parent", stored.with("parent_block_hash", raw(t, "d1fffe")), change(func(p *plainEvent) { p.Parent = "18446744073709551614" })},
		{"int32 hash", stored.with("block_hashes", []any{raw(t, "d2fffffffe")}), change(func(p *plainEvent) { p.Hashes = []uint64{1<<64 - 2} })},
		{"digest", stored.with("block_hashes", []any{raw(t, "c40affff0000000000000007")}), want},
		{"digest as text", stored.with("block_hashes", []any{raw(t, "aaffff0000000000000007")}), want},
		{"short digest", stored.with("block_hashes", []any{raw(t, "c40107")}), want},
		{"no hashes", stored.with("block_hashes", []uint64{}), change(func(p *plainEvent) { p.Hashes = nil })},
		{"wide token ids", stored.with("token_ids", raw(t, "94 cc01 cd0002 ce00000003 d30000000000000004")), want},
		{"signed token ids", stored.with("token_ids", raw(t, "94 d001 d10002 d200000003 cf0000000000000004")), want},
		{"no token ids", stored.with("token_ids", nil), change(func(p *plainEvent) { p.Tokens = nil })},
		{"token ids in pairs", stored.with("token_ids", []any{[]uint32{1, 2}, []uint32{2, 3}}), change(func(p *plainEvent) { p.Tokens = nil })},
		{"negative token id", stored.with("token_ids", []any{1, -1}), change(func(p *plainEvent) { p.Tokens = nil })},
		{"token id of 33 bits", stored.with("token_ids", []uint64{1 << 32}), change(func(p *plainEvent) { p.Tokens = nil })},
		{"empty texts are absent", stored.with("medium", "").with("lora_name", "").with("cache_salt", ""), change(func(p *plainEvent) { p.Medium = "" })},
		{"salt in slot 7", slot(7, fields{{"x", 1}, {"cache_salt", "tenant"}}), change(func(p *plainEvent) { p.Salt = "tenant" })},
		{"adapter by number", stored.with("lora_id", 7), change(func(p *plainEvent) { p.LoraID = "7" })},
		{"adapter by text", stored.with("lora_id", "7f"), change(func(p *plainEvent) { p.LoraID = "0" })},
		{"looks ahead", stored.with("lookahead_token_ids", []any{[]uint32{1}}), change(func(p *plainEvent) { p.Lookahead = true })},
		{"looks ahead, array32", stored.with("lookahead_token_ids", []any{raw(t, "dd0000000101")}), change(func(p *plainEvent) { p.Lookahead = true })},
		{"looks ahead at nothing", stored.with("lookahead_token_ids", []any{nil, []uint32{}}), want},
		{"looks ahead at no lists", stored.with("lookahead_token_ids", []any{}), want},
		{"looks ahead nil", stored.with("lookahead_token_ids", nil), want},
		{"looks ahead in an unknown form", stored.with("lookahead_token_ids", []any{5}), change(func(p *plainEvent) { p.Lookahead = true })},
		{"unknown tag", fields{{"type", "BlockInactive"}, {"block_hashes", "?"}}, unknown},
		{"unknown tag, array", []any{"BlockInactive", "?"}, unknown},
		{"cleared with fields", fields{{"type", "AllBlocksCleared"}, {"medium", 7}}, plainEvent{Kind: "cleared", Parent: "nil", Extra: "null", Group: "nil", LoraID: "nil"}},

		{"nil", nil, malformed},
		{"number", 5, malformed},
		{"text", "BlockStored", malformed},
		{"empty array", []any{}, malformed},
		{"empty map", fields{}, malformed},
		{"tag that is no text", []any{5, []uint64{7}}, malformed},
		{"map without type", stored.without("type"), malformed},
		{"map without hashes", stored.without("block_hashes"), malformed},
		{"array cut short", array[:4], malformed},
		{"removed without hashes", []any{"BlockRemoved"}, malformed},
		{"hashes nil", stored.with("block_hashes", nil), malformed},
		{"hashes no array", stored.with("block_hashes", fields{{"a", 1}}), malformed},
		{"hash nil", stored.with("block_hashes", []any{nil}), malformed},
		{"hash float", stored.with("block_hashes", []any{1.5}), malformed},
		{"hash empty", stored.with("block_hashes", []any{""}), malformed},
		{"parent array", stored.with("parent_block_hash", []any{1}), malformed},
		{"block size negative", stored.with("block_size", -1), malformed},
		{"block size text", stored.with("block_size", "4"), malformed},
		{"token ids map", stored.with("token_ids", fields{{"a", 1}}), malformed},
		{"medium number", stored.with("medium", 5), malformed},
		{"group text", stored.with("group_idx", "0"), malformed},
		{"name array", stored.with("lora_name", []any{"a"}), malformed},
		{"salt number in slot 7", slot(7, fields{{"cache_salt", 5}}), malformed},
		{"deep", msgpack.RawMessage(deep), malformed},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			var got []plainEvent
			_, err := newDecoder().decode(packBatch(stored, c.event, array), func(e *event) { got = append(got, plain(t, e)) })
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff([]plainEvent{want, c.want, want}, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestDecodeTokenForm(t *testing.T) {
	stored := storedEvent(nil, 4, nil, 7)
	for _, c := range []struct {
		name   string
		tokens any
		want   tokenForm
	}{
		{"ids", []uint32{1, 2}, tokenIDs},
		{"none", []uint32{}, tokenIDs},
		{"pairs", []any{[]uint32{1, 2}}, tokenBigrams},
		{"pairs later", []any{1, []uint32{1, 2}}, tokenBigrams},
		{"negative", []any{-1}, tokenOther},
		{"text", []any{"a"}, tokenOther},
		{"nil", []any{nil}, tokenOther},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := newDecoder().decode(packBatch(stored.with("token_ids", c.tokens)), func(e *event) {
				if e.kind != eventStored || e.tokenForm != c.want {
					t.Errorf("%v, form %d, want %d", e.kind, e.tokenForm, c.want)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestDecodeBatch(t *testing.T) {
	cleared := []any{clearedEvent()}
	at := time.Unix(1234, 500_000_000)
	tests := []struct {
		name    string
		payload []byte
		events  int
		want    batch
		err     error
	}{
		{"without rank", pack([]any{1234.5, cleared}), 1, batch{published: at}, nil},
		{"rank nil", pack([]any{1234.5, cleared, nil}), 1, batch{published: at}, nil},
		{"rank", pack([]any{1234.5, cleared, 3}), 1, batch{at, 3}, nil},
		{"later elements", pack([]any{1234.5, cleared, 3, []byte("publisher"), fields{{"a", 1}}}), 1, batch{at, 3}, nil},
		{"map", pack(fields{{"data_parallel_rank", 3}, {"events", cleared}, {"x", 1}, {"ts", 1234.5}}), 1, batch{at, 3}, nil},
		{"time as integer", pack([]any{1234, cleared}), 1, batch{published: time.Unix(1234, 0)}, nil},
		{"time nil", pack([]any{nil, cleared}), 1, batch{}, nil},
		{"time text", pack([]any{"now", cleared, 1}), 1, batch{rank: 1}, nil},
		{"time NaN", append(append([]byte{0x92, 0xcb}, bytes.Repeat([]byte{0xff}, 8)...), 0x91, 0x91, 0xb0, 'A', 'l', 'l', 'B', 'l', 'o', 'c', 'k', 's', 'C', 'l', 'e', 'a', 'r', 'e', 'd'), 1, batch{}, nil},
		{"no events", pack([]any{1234.5, []any{}, 0}), 0, batch{published: at}, nil},
		{"rank negative", pack([]any{1234.5, cleared, -1}), 1, batch{published: at}, nil},

		{"empty", nil, 0, batch{}, errTruncated},
		{"one element", pack([]any{1234.5}), 0, batch{}, errMalformed},
		{"number", pack(5), 0, batch{}, errMalformed},
		{"events nil", pack([]any{1234.5, nil, 0}), 0, batch{published: at}, errMalformed},
		{"map without events", pack(fields{{"ts", 1234.5}}), 0, batch{published: at}, errMalformed},
		{"cut after the first event", pack([]any{1234.5, []any{clearedEvent(), clearedEvent()}})[:40], 1, batch{published: at}, errTruncated},
		{"no msgpack", []byte{0x92, 0x01, 0x91, 0xc1}, 0, batch{published: time.Unix(1, 0)}, errFraming},
		{"array longer than the payload", raw(t, "ddffffffff"), 0, batch{}, errTruncated},
		{"map longer than the payload", raw(t, "dfffffffff"), 0, batch{}, errTruncated},
		{"events longer than the payload", raw(t, "9201ddfffffffe90"), 0, batch{published: time.Unix(1, 0)}, errTruncated},
		{"event with hashes longer than the payload", raw(t, "92019193 ac 426c6f636b52656d6f766564 dd7fffffff 01 c0"), 0, batch{published: time.Unix(1, 0)}, errTruncated},
		{"event with a text longer than the payload", raw(t, "920191c6ffffffff00"), 0, batch{published: time.Unix(1, 0)}, errTruncated},
		{"array header cut", raw(t, "dc00"), 0, batch{}, errTruncated},
		{"time cut", raw(t, "92cb00"), 0, batch{}, errTruncated},
		{"rank cut", raw(t, "930190cd00"), 0, batch{published: time.Unix(1, 0)}, errTruncated},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			events := 0
			got, err := newDecoder().decode(c.payload, func(*event) { events++ })
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if events != c.events || !got.published.Equal(c.want.published) || got.rank != c.want.rank {
				t.Errorf("%d events, %+v; want %d, %+v", events, got, c.events, c.want)
			}
		})
	}
}

// TestDecodeAllocatesByPayload: lengths that a few bytes claim cost nothing.
func TestDecodeAllocatesByPayload(t *testing.T) {
	tokens := append(raw(t, "920191 84 a474797065 ab426c6f636b53746f726564 a9746f6b656e5f696473 dd00400000"), bytes.Repeat([]byte{1}, 100)...)
	d := newDecoder()
	if n := testing.AllocsPerRun(100, func() { d.decode(tokens, func(*event) {}) }); n > 3 { // of the error
		t.Errorf("%v allocations", n)
	}
	if cap(d.ev.tokens) > 1000 {
		t.Errorf("room for %d token ids", cap(d.ev.tokens))
	}
}

func TestSkip(t *testing.T) {
	for _, c := range []struct {
		name string
		b    []byte
		err  error
	}{
		{"nested", pack([]any{1, fields{{"a", []any{1.5, "x", nil, true, false, uint64(1) << 40}}}, []byte{1, 2}}), nil},
		{"text of 32 bits", raw(t, "db00000002 6161"), nil},
		{"fixext 16", append(raw(t, "d801"), make([]byte, 16)...), nil},
		{"ext 8", raw(t, "c70201 0000"), nil},
		{"ext 16", raw(t, "c8000101 00"), nil},
		{"ext 32", raw(t, "c90000000001"), nil},
		{"float32", raw(t, "ca00000000"), nil},
		{"map16", raw(t, "de0001 01 02"), nil},
		{"array32", raw(t, "dd00000001 e0"), nil},
		{"100,000 deep", append(bytes.Repeat([]byte{0x81, 0x01}, 100_000), 0xc0), nil},
		{"empty", nil, errTruncated},
		{"reserved code", raw(t, "91c1"), errFraming},
		{"text cut", raw(t, "a361"), errTruncated},
		{"length cut", raw(t, "da00"), errTruncated},
		{"map without value", raw(t, "8101"), errTruncated},
		{"array cut", raw(t, "92c0"), errTruncated},
		{"ext cut", raw(t, "d600"), errTruncated},
		{"map of 2^32", raw(t, "dfffffffff"), errTruncated},
	} {
		t.Run(c.name, func(t *testing.T) {
			cur := cursor{b: c.b}
			if err := cur.skip(); !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if c.err == nil && cur.remaining() != 0 {
				t.Errorf("%d bytes left", cur.remaining())
			}
		})
	}
}
