package admin

import (
	"bufio"
	"fmt"
	"net/http"
	"slices"
)

// maxBlocks bounds the blocks of a rank that are listed: a million take some 24 MiB.
const maxBlocks = 1 << 20

// blocks lists what an endpoint is believed to hold, to be compared with what it does: a line for each block, of rank, tier and fingerprint, sorted.
// Fingerprints tell whether a known prompt was sent, so they are as protected as the rest. One list is made at a time.
func (s *Server) blocks(w http.ResponseWriter, r *http.Request) {
	_, e, ok := s.endpoint(w, r)
	if !ok {
		return
	}
	select {
	case s.packs <- struct{}{}:
		defer func() { <-s.packs }()
	default:
		answer(w, http.StatusServiceUnavailable, problem{Error: "another bundle or list is being made"})
		return
	}
	ranks, err := s.o.Viewer.Blocks(e.Address, maxBlocks)
	if err != nil {
		answer(w, http.StatusConflict, problem{Error: err.Error()})
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out := bufio.NewWriter(w)
	defer out.Flush()
	for _, held := range ranks {
		slices.Sort(held.Any)
		slices.Sort(held.Device)
		for _, key := range held.Any {
			tier := "any"
			if _, found := slices.BinarySearch(held.Device, key); found {
				tier = "device"
			}
			fmt.Fprintf(out, "%d %s %016x\n", held.Rank, tier, key)
		}
	}
}
