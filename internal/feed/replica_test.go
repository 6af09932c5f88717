package feed

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/subscriber"
)

// wired is a message as its receiver has it.
func wired[M proto.Message](t *testing.T, m M) M {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	got := m.ProtoReflect().New().Interface().(M)
	if err := proto.Unmarshal(data, got); err != nil {
		t.Fatal(err)
	}
	return got
}

func fullReplica() Replica {
	return Replica{
		Endpoint: ":8000", Pool: "chat", Models: []string{"llama", "llama-3"}, Adapters: []Adapter{{"law", "/loras/law", "llama"}}, Engine: "vllm", Version: "0.32.0",
		BlockSize: 16, Sources: []uint32{3, 4}, Problems: []string{"hybrid"}, Draining: true, Files: []File{{"tokenizer.json", [32]byte{1, 2}, 1 << 33}},
		MaxModelLen: 131072, Listing: ListingAwaited,
	}
}

func TestTypesCrossTheWire(t *testing.T) {
	t.Run("replica", func(t *testing.T) {
		want := fullReplica()
		got, err := replicaOf(wired(t, want.proto()))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v\n%s", err, diff)
		}
		newer := want.proto()
		newer.Listing = 7
		if got, err := replicaOf(wired(t, newer)); got.Listing != ListingNone || err != nil {
			t.Errorf("a listing that is not known here is %d, %v", got.Listing, err)
		}
	})
	t.Run("load", func(t *testing.T) {
		want := Load{"10.0.0.1:8000", 3, 4, .5, 100, 200, true, 1500 * time.Millisecond, true}
		got, err := loadOf(wired(t, want.proto()))
		if got != want || err != nil {
			t.Errorf("%+v, %v", got, err)
		}
	})
	for _, rank := range []int{-1, 0, 7} {
		want := Charge{"chat", "10.0.0.1:8000", rank, math.MaxUint64, 4096, 8192, math.MaxUint64 - 1}
		got, err := chargeOf(wired(t, want.proto()))
		if got != want || err != nil {
			t.Errorf("charge: %+v, %v", got, err)
		}
	}
	t.Run("release", func(t *testing.T) {
		want := Release{"chat", 12}
		got, err := releaseOf(wired(t, want.proto()))
		if got != want || err != nil {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("record", func(t *testing.T) {
		want := Record{"k5t2q9vb", "k5t2q9vb-1z", "chat", "10.0.0.1:8000", 2, 200, true, true, true}
		got, err := recordOf(wired(t, want.proto()))
		if got != want || err != nil {
			t.Errorf("%+v, %v", got, err)
		}
	})
	for _, m := range []subscriber.Medium{subscriber.MediumNone, subscriber.MediumHost, subscriber.MediumDisk} {
		want := subscriber.Description{Connected: true, Complete: true, BlockSize: 64, ExtraKeys: true, Coldest: m, Problem: subscriber.ProblemHybrid}
		got, err := describedBy(wired(t, stateOf(9, want)))
		if got != want || err != nil {
			t.Errorf("description: %+v, %v", got, err)
		}
	}
}

// TestReceivedTypesAreChecked has what no peer of this protocol sends.
func TestReceivedTypesAreChecked(t *testing.T) {
	long := strings.Repeat("x", 5000)
	replica := func(change func(*feedpb.Replica)) func() error {
		return func() error {
			p := fullReplica().proto()
			change(p)
			_, err := replicaOf(p)
			return err
		}
	}
	for name, tt := range map[string]struct {
		read func() error
		want string
	}{
		"no endpoint":    {replica(func(p *feedpb.Replica) { p.Endpoint = "" }), "no endpoint"},
		"no pool":        {replica(func(p *feedpb.Replica) { p.Pool = "" }), "no pool"},
		"long endpoint":  {replica(func(p *feedpb.Replica) { p.Endpoint = long }), "endpoint of 5000 bytes, at most 128"},
		"long model":     {replica(func(p *feedpb.Replica) { p.Models = []string{"a", long} }), "model of 5000 bytes"},
		"long adapter":   {replica(func(p *feedpb.Replica) { p.Adapters[0].Name = long }), "adapter of 5000 bytes"},
		"long path":      {replica(func(p *feedpb.Replica) { p.Adapters[0].Path = long }), "adapter's path of 5000 bytes"},
		"long parent":    {replica(func(p *feedpb.Replica) { p.Adapters[0].Parent = long }), "adapter's parent of 5000 bytes"},
		"long problem":   {replica(func(p *feedpb.Replica) { p.Problems = []string{long} }), "problem of 5000 bytes"},
		"many sources":   {replica(func(p *feedpb.Replica) { p.Sources = make([]uint32, 65) }), "65 sources, at most 64"},
		"many models":    {replica(func(p *feedpb.Replica) { p.Models = make([]string, 1025) }), "1025 models"},
		"short hash":     {replica(func(p *feedpb.Replica) { p.Files[0].Sha256 = []byte{1} }), "hash of 1 bytes"},
		"huge file":      {replica(func(p *feedpb.Replica) { p.Files[0].Size = math.MaxUint64 }), "file of"},
		"load of none":   {func() error { _, err := loadOf(&feedpb.Load{}); return err }, "no endpoint"},
		"usage above 1":  {func() error { _, err := loadOf(&feedpb.Load{Endpoint: ":1", KvUsage: 1.5}); return err }, "KV usage of 1.5"},
		"no usage":       {func() error { _, err := loadOf(&feedpb.Load{Endpoint: ":1", KvUsage: math.NaN()}); return err }, "KV usage of NaN"},
		"charge of none": {func() error { _, err := chargeOf(&feedpb.Charge{Pool: "chat"}); return err }, "no endpoint"},
		"long charge":    {func() error { _, err := chargeOf(&feedpb.Charge{Pool: "chat", Endpoint: long}); return err }, "endpoint of 5000"},
		"no pool freed":  {func() error { _, err := releaseOf(&feedpb.Release{}); return err }, "no pool"},
		"no decision":    {func() error { _, err := recordOf(&feedpb.Record{Instance: "a"}); return err }, "no decision"},
		"long record":    {func() error { _, err := recordOf(&feedpb.Record{Instance: "a", Id: long}); return err }, "id of 5000"},
		"another medium": {func() error { _, err := describedBy(&feedpb.State{Coldest: 9}); return err }, "medium 9"},
	} {
		if err := tt.read(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// TestServedNamesAreWhole holds that a served name is announced as it is or not at all, and that one too many costs no other.
func TestServedNamesAreWhole(t *testing.T) {
	longest, longer := strings.Repeat("x", 1024), strings.Repeat("x", 1025)
	r := Replica{
		Endpoint: ":1", Pool: "chat", Models: []string{longer, "base", longest},
		Adapters: []Adapter{{Name: longer}, {Name: longest, Parent: longest}, {Name: "a", Parent: longer}, {Name: "b"}},
	}
	got := r.valid()
	want := Replica{Endpoint: ":1", Pool: "chat", Models: []string{"base", longest}, Adapters: []Adapter{{Name: longest, Parent: longest}, {Name: "b"}}}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
	if err := got.check(); err != nil {
		t.Error(err)
	}
	if len(r.Models) != 3 || r.Adapters[0].Name != longer {
		t.Error("the caller's lists were changed")
	}
}

func TestNumbersAreBounded(t *testing.T) {
	c, err := chargeOf(&feedpb.Charge{Pool: "a", Endpoint: ":1", Rank: math.MaxUint32, Uncached: math.MaxUint32, Prompt: math.MaxUint32})
	if err != nil || c.Uncached != math.MaxInt32 || c.Prompt != math.MaxInt32 || c.Rank != math.MaxInt32-1 {
		t.Errorf("%+v, %v", c, err)
	}
	l, err := loadOf(&feedpb.Load{Endpoint: ":1", Running: math.MaxUint32, AgeMs: math.MaxUint64})
	if err != nil || l.Running != math.MaxInt32 || l.Age != maxAge {
		t.Errorf("%+v, %v", l, err)
	}
	if p := (Replica{BlockSize: -1, MaxModelLen: math.MaxInt}).proto(); p.GetBlockSize() != 0 || p.GetMaxModelLen() != math.MaxInt32 {
		t.Error(p)
	}
}

func TestCountKeys(t *testing.T) {
	tests := []struct {
		name        string
		keys, tiers []byte
		whole       bool
		n           int
		failure     string
	}{
		{"none", nil, nil, true, 0, ""},
		{"all tiers", make([]byte, 16), nil, true, 2, ""},
		{"tiers", make([]byte, 16), []byte{1, 3}, true, 2, ""},
		{"device alone", make([]byte, 16), []byte{2, 3}, false, 2, ""},
		{"device alone in a copy", make([]byte, 16), []byte{2, 3}, true, 0, "tier bits 0x2"},
		{"no tier", make([]byte, 8), []byte{0}, false, 0, "tier bits 0x0"},
		{"unknown bit", make([]byte, 8), []byte{4}, false, 0, "tier bits 0x4"},
		{"half a key", make([]byte, 12), nil, false, 0, "no whole keys"},
		{"fewer tiers", make([]byte, 16), []byte{1}, false, 0, "with 1 tiers"},
		{"more tiers", nil, []byte{1}, false, 0, "with 1 tiers"},
		{"many", make([]byte, 8*(maxKeys+1)), nil, false, 0, "at most 8192"},
	}
	for _, tt := range tests {
		n, err := countKeys("keys", tt.keys, tt.tiers, tt.whole)
		if n != tt.n || (err == nil) != (tt.failure == "") || err != nil && !strings.Contains(err.Error(), tt.failure) {
			t.Errorf("%s: %d, %v, want %d, %q", tt.name, n, err, tt.n, tt.failure)
		}
	}
	list := appendKey(appendKey(nil, 0x0102030405060708), 7)
	if list[0] != 8 || keyAt(list, 0) != 0x0102030405060708 || keyAt(list, 1) != 7 {
		t.Errorf("keys % x", list)
	}
	if tierOf(nil, 5) != tierBoth || tierOf([]byte{1, 2}, 1) != tierDevice || packTiers([]byte{3, 3}) != nil || len(packTiers([]byte{3, 1})) != 2 {
		t.Error("tiers")
	}
}
