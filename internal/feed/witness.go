package feed

import (
	"cmp"
	"fmt"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/subscriber"
)

// Bounds of what either side takes of witnesses.
const (
	maxChains  = 32                       // of one source, and of one witness
	maxNumbers = 2 * subscriber.MaxHashed // hashes of one witness
	noneSize   = 32                       // bytes of what first blocks have for a parent
)

func wantedProto(source uint32, w subscriber.Want) *feedpb.Wanted {
	p := &feedpb.Wanted{Source: source, Prompts: w.Yes, BlockSize: count32(w.BlockSize), Tagged: w.Tagged, Untagged: w.Untagged}
	for _, c := range w.Chains {
		p.Chains = append(p.Chains, &feedpb.Chain{Algorithm: c.Algorithm, None: c.None[:]})
	}
	return p
}

// wantOf reads a received wish.
func wantOf(p *feedpb.Wanted) (w subscriber.Want, err error) {
	if err := few("chains", len(p.GetChains()), maxChains); err != nil {
		return w, err
	}
	if !p.GetPrompts() {
		return w, nil
	}
	w = subscriber.Want{Yes: true, BlockSize: count(p.GetBlockSize()), Tagged: p.GetTagged(), Untagged: p.GetUntagged()}
	for _, c := range p.GetChains() {
		if err := short("algorithm", c.GetAlgorithm(), maxName); err != nil {
			return w, err
		}
		if len(c.GetNone()) != noneSize {
			return w, fmt.Errorf("chain whose first parent has %d bytes", len(c.GetNone()))
		}
		w.Chains = append(w.Chains, subscriber.Chain{Algorithm: c.GetAlgorithm(), None: [noneSize]byte(c.GetNone())})
	}
	return w, nil
}

func witnessProto(source uint32, h *subscriber.Hashes) *feedpb.Witness {
	p := &feedpb.Witness{
		Source: source, BlockSize: count32(h.BlockSize), Root: h.Root, Adapter: h.Adapter, Salted: h.Salted, Pathless: h.Pathless, Contents: packNumbers(h.Contents),
	}
	for _, c := range h.Chains {
		p.Chains = append(p.Chains, &feedpb.ChainHashes{Algorithm: c.Algorithm, Tagged: c.Tagged, Hashes: packNumbers(c.Hashes)})
	}
	return p
}

// witnessOf reads a received witness. Nothing of it is shared with p.
func witnessOf(p *feedpb.Witness) (h subscriber.Hashes, err error) {
	h = subscriber.Hashes{
		BlockSize: count(p.GetBlockSize()), Root: p.GetRoot(), Adapter: p.GetAdapter(), Salted: p.GetSalted(), Pathless: p.GetPathless(),
	}
	if err := cmp.Or(whole("contents", p.GetContents(), subscriber.MaxHashed), few("chains", len(p.GetChains()), maxChains)); err != nil {
		return h, err
	}
	numbers := len(p.GetContents()) / keySize
	if numbers == 0 || h.BlockSize == 0 {
		return h, fmt.Errorf("witness of %d blocks of %d tokens", numbers, h.BlockSize)
	}
	for _, c := range p.GetChains() {
		if err := cmp.Or(short("algorithm", c.GetAlgorithm(), maxName), whole("hashes", c.GetHashes(), len(p.GetContents())/keySize)); err != nil {
			return h, err
		}
		numbers += len(c.GetHashes()) / keySize
	}
	if err := few("hashes", numbers, maxNumbers); err != nil {
		return h, err
	}
	h.Contents = unpackNumbers(p.GetContents())
	for _, c := range p.GetChains() {
		h.Chains = append(h.Chains, subscriber.ChainHashes{Algorithm: c.GetAlgorithm(), Tagged: c.GetTagged(), Hashes: unpackNumbers(c.GetHashes())})
	}
	return h, nil
}

// whole says what is wrong with a packed list of numbers.
func whole(what string, list []byte, most int) error {
	if len(list)%keySize != 0 {
		return fmt.Errorf("%s of %d bytes are no whole numbers", what, len(list))
	}
	return few(what, len(list)/keySize, most)
}

func packNumbers(list []uint64) []byte {
	packed := make([]byte, 0, len(list)*keySize)
	for _, n := range list {
		packed = appendKey(packed, n)
	}
	return packed
}

func unpackNumbers(packed []byte) []uint64 {
	list := make([]uint64, len(packed)/keySize)
	for i := range list {
		list[i] = keyAt(packed, i)
	}
	return list
}
