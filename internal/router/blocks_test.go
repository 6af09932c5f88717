package router

import (
	"slices"
	"testing"

	"github.com/kvsteer/kvsteer/internal/blockhash"
	"github.com/kvsteer/kvsteer/subscriber"
)

func TestBlocks(t *testing.T) {
	w := newWorld(t, Options{}, chat(2))
	tokens := run(1, 8*block)
	keys := blockhash.AppendKeys(nil, blockhash.Namespace{Pool: "chat", BlockSize: block}.Root(), tokens, block)
	s := w.connect(address(0), block)
	s.Store(subscriber.Any, keys)
	s.Store(subscriber.Device, keys[:5])

	blocks := func(endpoint string, limit int) HeldBlocks {
		t.Helper()
		all, err := w.r.Blocks(endpoint, limit)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) != 1 || all[0].Rank != 0 {
			t.Fatalf("ranks: %+v", all)
		}
		return all[0]
	}
	same := func(what string, got, want []uint64) {
		t.Helper()
		got, want = slices.Clone(got), slices.Clone(want)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %d blocks, want %d", what, len(got), len(want))
		}
	}
	held := blocks(address(0), 8)
	same("any tier", held.Any, keys)
	same("device", held.Device, keys[:5])
	if none := blocks(address(1), 8); none.Any != nil || none.Device != nil {
		t.Errorf("an endpoint without a source holds %+v", none)
	}
	if _, err := w.r.Blocks(address(0), 7); err == nil {
		t.Error("more blocks than the limit are no error")
	}
	if _, err := w.r.Blocks("10.9.9.9:1", 8); err == nil {
		t.Error("an unknown endpoint is no error")
	}
	s.Describe(subscriber.Description{BlockSize: block})
	if gone := blocks(address(0), 8); gone.Any != nil {
		t.Errorf("a source that is not connected counts for %d blocks", len(gone.Any))
	}
}
