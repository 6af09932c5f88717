package enginesim

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

type recording struct {
	Requests []struct {
		Path string
		Body struct {
			Model     string
			Prompt    json.RawMessage
			MaxTokens int    `json:"max_tokens"`
			CacheSalt string `json:"cache_salt"`
		}
	}
	Responses []struct {
		Status         int
		PromptTokenIDs []uint32 `json:"prompt_token_ids"`
		TokenIDs       []uint32 `json:"token_ids"`
		Usage          struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	Messages []struct{ Frames []string }
}

// TestRecordedEngine replays the requests of a real engine, with the tokens it generated, and wants the same messages byte
// for byte but for their time, and the same number of cached tokens.
func TestRecordedEngine(t *testing.T) {
	runs := []struct {
		name   string
		seed   string
		blocks int
		format Format
		hashes HashForm
		files  string
	}{
		{"0.32 many blocks, integers", blockhash.DefaultSeed, 32768, Map, HashInt, "testdata/events-0.32.0/[01]*.json"},
		{"0.32 few blocks, bytes", "0", 24, Map, HashBytes, "testdata/events-0.32.0/3*.json"},
		{"0.23 few blocks, integers", "0", 32, Array, HashInt, "testdata/events-0.23.0/*.json"},
	}
	for _, run := range runs {
		t.Run(run.name, func(t *testing.T) {
			files, err := filepath.Glob(run.files)
			if err != nil || len(files) == 0 {
				t.Fatalf("glob %s: %d files, %v", run.files, len(files), err)
			}
			e := &replay{
				sched:   scheduler{blockSize: 32, maxStepTokens: 2048, maxRunning: 256, cache: newCache(run.blocks, run.format)},
				hasher:  &hasher{blockSize: 32, seed: blockhash.NoneHash(run.seed), tagged: run.format == Map},
				encoder: encoder{format: run.format, hashes: run.hashes},
				adapter: &adapter{id: 1, name: "adapter-a", path: "tiny/lora/adapter-a"},
			}
			for _, f := range files {
				var rec recording
				data, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				if err := json.Unmarshal(data, &rec); err != nil {
					t.Fatal(err)
				}
				e.payloads = nil
				cached := e.run(t, &rec)
				for i, c := range cached {
					if want := rec.Responses[i].Usage.Details.Cached; c != want {
						t.Errorf("%s: request %d: %d cached tokens, want %d", f, i, c, want)
					}
				}
				if len(e.payloads) != len(rec.Messages) {
					t.Errorf("%s: %d messages, want %d", f, len(e.payloads), len(rec.Messages))
				}
				for i := range min(len(e.payloads), len(rec.Messages)) {
					want, err := hex.DecodeString(rec.Messages[i].Frames[2])
					if err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(withoutTime(e.payloads[i]), withoutTime(want)) {
						t.Fatalf("%s: message %d differs:\n got %x\nwant %x", f, i, e.payloads[i], want)
					}
				}
			}
		})
	}
}

// withoutTime zeroes the float64 after the batch's array header.
func withoutTime(payload []byte) []byte {
	p := slices.Clone(payload)
	clear(p[2:10])
	return p
}

type replay struct {
	sched    scheduler
	hasher   *hasher
	encoder  encoder
	adapter  *adapter
	payloads [][]byte
}

// run starts the requests of one file and returns the cached tokens of those that have a usage. Requests that the engine
// had at once are started one step after the other, as their messages show they were.
func (e *replay) run(t *testing.T, rec *recording) map[int]int {
	t.Helper()
	overlapping := len(rec.Requests) > 1 && rec.Requests[0].Body.MaxTokens == 400
	var seqs []*sequence
	cached := map[int]int{}
	for i, r := range rec.Requests {
		if r.Path == "/reset_prefix_cache" {
			if !e.sched.reset() {
				t.Fatal("reset: blocks in use")
			}
			continue
		}
		prompts := [][]uint32{rec.Responses[i].PromptTokenIDs}
		if bytes.HasPrefix(r.Body.Prompt, []byte("[[")) {
			prompts = nil
			if err := json.Unmarshal(r.Body.Prompt, &prompts); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range prompts {
			var a *adapter
			if r.Body.Model == e.adapter.name {
				a = e.adapter
			}
			q := newSequence(e.hasher, a, r.Body.CacheSalt, p, r.Body.MaxTokens)
			answer := rec.Responses[i].TokenIDs
			q.next = func(i int) uint32 { return answer[i] }
			e.sched.add(q)
			seqs = append(seqs, q)
			e.step()
			for !overlapping && e.step() {
			}
		}
	}
	for e.step() {
	}
	for i, q := range seqs {
		if len(seqs) == len(rec.Responses) {
			cached[i] = q.cached
		}
	}
	return cached
}

func (e *replay) step() bool {
	st := e.sched.schedule()
	if len(st.parts) == 0 {
		return false
	}
	if events := e.sched.cache.takeEvents(); len(events) > 0 {
		e.payloads = append(e.payloads, e.encoder.batch(time.Unix(0, 0), events))
	}
	e.sched.complete(st)
	return true
}

// TestEncodings encodes the events of testdata/encodings that a single full-attention GPU group can publish.
func TestEncodings(t *testing.T) {
	digest := func(last uint64) blockhash.Digest {
		var d blockhash.Digest
		binary.BigEndian.PutUint64(d[24:], last)
		return d
	}
	whole, _ := hex.DecodeString("58d0879dff3800f65f8c5fd449d73048c0f7699dd238a03b84b146b151d55111")
	h0, h1, h2 := digest(0x84b146b151d55111), digest(4503599627370497), digest(7)
	root := event{kind: blockStored, hashes: []blockhash.Digest{h0}, root: true, tokens: []uint32{1, 2, 3, 4}, blockSize: 4}
	child := event{
		kind: blockStored, hashes: []blockhash.Digest{h1, h2}, parent: h0, tokens: []uint32{5, 6, 7, 8, 300, 70000, 151645, 128}, blockSize: 4,
	}
	lora := event{
		kind: blockStored, hashes: []blockhash.Digest{h1}, root: true, tokens: []uint32{1, 2, 3, 4}, blockSize: 4,
		adapter: &adapter{id: 1, name: "adapter-a"}, salt: "tenant-1",
	}
	removed := event{kind: blockRemoved, hashes: []blockhash.Digest{h0}}
	cleared := event{kind: allBlocksCleared}
	rootWhole, removedWhole := root, removed
	rootWhole.hashes = []blockhash.Digest{blockhash.Digest(whole)}
	removedWhole.hashes = rootWhole.hashes
	cases := map[string]struct {
		events []event
		hashes HashForm
	}{
		"stored_root":             {[]event{root}, HashInt},
		"stored_child_two_blocks": {[]event{child}, HashInt},
		"stored_lora_salt":        {[]event{lora}, HashInt},
		"removed_one":             {[]event{removed}, HashInt},
		"cleared":                 {[]event{cleared}, HashInt},
		"mixed":                   {[]event{removed, root, child, cleared}, HashInt},
		"bytes_hash":              {[]event{rootWhole, removedWhole}, HashBytes},
	}
	formats := map[string]Format{"vllm-0.14.1": OldArray, "vllm-0.22.1": Array, "vllm-0.24.0": Map, "vllm-0.26.0": Map}
	for file, format := range formats {
		data, err := os.ReadFile("testdata/encodings/" + file + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var golden struct {
			Cases []struct {
				Case    string
				Rank    *int
				Payload string
			}
		}
		if err := json.Unmarshal(data, &golden); err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, g := range golden.Cases {
			c, ok := cases[g.Case]
			if !ok || g.Rank == nil || *g.Rank != 0 {
				continue
			}
			seen++
			got := encoder{format: format, hashes: c.hashes}.batch(time.UnixMicro(1234.5e6), c.events)
			if hex.EncodeToString(got) != g.Payload {
				t.Errorf("%s: %s:\n got %x\nwant %s", file, g.Case, got, g.Payload)
			}
		}
		if seen != len(cases) {
			t.Errorf("%s: %d of %d cases found", file, seen, len(cases))
		}
	}
}

// TestShortestForms checks the lengths at which msgpack changes its form.
func TestShortestForms(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "00", 127: "7f", 128: "cc80", 255: "ccff", 256: "cd0100", 65535: "cdffff", 65536: "ce00010000",
		math.MaxUint32: "ceffffffff", math.MaxUint32 + 1: "cf0000000100000000", math.MaxUint64: "cfffffffffffffffff",
	} {
		if got := hex.EncodeToString(appendUint(nil, n)); got != want {
			t.Errorf("uint %d: %s, want %s", n, got, want)
		}
	}
	for n, want := range map[int]string{0: "90", 15: "9f", 16: "dc0010", 65535: "dcffff", 65536: "dd00010000"} {
		if got := hex.EncodeToString(appendArray(nil, n)); got != want {
			t.Errorf("array %d: %s, want %s", n, got, want)
		}
	}
	for n, want := range map[int]string{0: "a0", 31: "bf", 32: "d920", 255: "d9ff", 256: "da0100", 65536: "db00010000"} {
		if got := hex.EncodeToString(appendString(nil, string(make([]byte, n)))[:len(want)/2]); got != want {
			t.Errorf("string %d: %s, want %s", n, got, want)
		}
	}
}
