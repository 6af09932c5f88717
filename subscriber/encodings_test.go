package subscriber

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"
)

// plainEvent is an event with values in place of pointers into buffers.
type plainEvent struct {
	Kind                      string
	Hashes                    []uint64
	Parent                    string
	Tokens                    []uint32
	BlockSize                 uint64
	LoraID                    string
	Lookahead                 bool
	LoraName, Salt            string
	Extra                     string // JSON
	Medium                    string
	Group                     string
	Spec, Locality, Ownership string
}

func plain(t testing.TB, e *event) plainEvent {
	t.Helper()
	p := plainEvent{
		Kind: e.kind.String(), Hashes: append([]uint64(nil), e.hashes...), Parent: "nil", Tokens: append([]uint32(nil), e.tokens...),
		BlockSize: e.blockSize, LoraID: "nil", Lookahead: e.lookahead, LoraName: string(e.loraName), Salt: string(e.salt), Extra: "null",
		Medium: string(e.medium), Group: "nil", Spec: string(e.spec), Locality: string(e.locality), Ownership: string(e.ownership),
	}
	if e.hasParent {
		p.Parent = fmt.Sprint(e.parent)
	}
	if e.hasLoraID {
		p.LoraID = fmt.Sprint(e.loraID)
	}
	if e.hasGroup {
		p.Group = fmt.Sprint(e.group)
	}
	if e.hasExtra {
		v, err := msgpack.NewDecoder(bytes.NewReader(e.extra)).DecodeInterface()
		if err != nil {
			t.Fatal(err)
		}
		j, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		p.Extra = string(j)
	}
	return p
}

// wantPlain reads the same from an event decoded by Python.
func wantPlain(t testing.TB, decoded any) plainEvent {
	t.Helper()
	p := plainEvent{Parent: "nil", Extra: "null", Group: "nil", LoraID: "nil"}
	if array, ok := decoded.([]any); ok && array[0] == "BlockStored" && len(array) > 7 {
		if slot, ok := array[7].(map[string]any); ok { // SGLang
			p.Salt = slot["cache_salt"].(string)
			decoded = array[:7]
		}
	}
	e := named(t, decoded)
	text := func(key string) string { s, _ := e[key].(string); return s }
	switch e["type"] {
	case "BlockStored":
		p.Kind = "stored"
		if e["parent_block_hash"] != nil {
			p.Parent = fmt.Sprint(wantHash(t, e["parent_block_hash"]))
		}
		p.Tokens = wantTokens(t, e["token_ids"])
		p.BlockSize = wantInt(t, e["block_size"])
		if e["lora_id"] != nil {
			p.LoraID = fmt.Sprint(wantInt(t, e["lora_id"]))
		}
		if lists, ok := e["lookahead_token_ids"].([]any); ok {
			p.Lookahead = slices.ContainsFunc(lists, func(list any) bool { return len(list.([]any)) > 0 })
		}
		p.LoraName = text("lora_name")
		if s := text("cache_salt"); s != "" {
			p.Salt = s
		}
		p.Spec = text("kv_cache_spec_kind")
		j, err := json.Marshal(e["extra_keys"])
		if err != nil {
			t.Fatal(err)
		}
		p.Extra = string(j)
	case "BlockRemoved":
		p.Kind = "removed"
	case "AllBlocksCleared":
		p.Kind = "cleared"
		return p
	}
	for _, h := range e["block_hashes"].([]any) {
		p.Hashes = append(p.Hashes, wantHash(t, h))
	}
	p.Medium, p.Locality, p.Ownership = text("medium"), text("locality"), text("ownership")
	if e["group_idx"] != nil {
		p.Group = fmt.Sprint(wantInt(t, e["group_idx"]))
	}
	return p
}

// TestEncodings decodes what the event classes of each release produce.
func TestEncodings(t *testing.T) {
	cases := 0
	for _, file := range append(goldenFiles(t, "testdata/encodings/*.json"), furtherFiles(t, "encodings/*.json")...) {
		var encoding struct {
			Cases []struct {
				Case    string
				Rank    *int
				Payload string
				Decoded []any
			}
		}
		readJSON(t, file, &encoding)
		for _, c := range encoding.Cases {
			cases++
			name := fmt.Sprintf("%s/%s/%v", filepath.Base(file), c.Case, c.Rank != nil)
			payload, err := hex.DecodeString(c.Payload)
			if err != nil {
				t.Fatal(err)
			}
			var got, want []plainEvent
			b, err := newDecoder().decode(payload, func(e *event) { got = append(got, plain(t, e)) })
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			for _, e := range c.Decoded[1].([]any) {
				want = append(want, wantPlain(t, e))
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s (-want +got):\n%s", name, d)
			}
			rank := 0
			if c.Rank != nil {
				rank = *c.Rank
			}
			if b.rank != rank || b.published.UnixMilli() != 1234500 {
				t.Errorf("%s: rank %d at %v", name, b.rank, b.published)
			}
		}
	}
	if cases < 150 {
		t.Errorf("%d cases only", cases)
	}
}

// TestRecordedDecode compares every event that was recorded live with its
// decoding by Python, those of the data-parallel ranks included.
func TestRecordedDecode(t *testing.T) {
	for _, file := range append(goldenFiles(t, "testdata/events/*/*.json"), furtherFiles(t, "vllm-*/events/*.json")...) {
		var r recording
		readJSON(t, file, &r)
		messages, decoded := r.Messages, r.Decoded
		for _, rank := range r.Ranks {
			messages, decoded = append(messages, rank.Messages...), append(decoded, rank.Decoded...)
		}
		for i, m := range messages {
			var got, want []plainEvent
			if _, err := newDecoder().decode(m.payload(t), func(e *event) { got = append(got, plain(t, e)) }); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			for _, e := range decoded[i].Batch[1].([]any) {
				want = append(want, wantPlain(t, e))
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s: message %d (-want +got):\n%s", file, i, d)
			}
		}
	}
}
