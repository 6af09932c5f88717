package feed

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

// Replica is an engine as a node announces it.
type Replica struct {
	Endpoint    string // ip:port of the engine's HTTP server; :port stands for the address at which a router reaches the node
	Pool        string
	Models      []string // served names of the base weights
	Adapters    []Adapter
	Engine      string // vllm, sglang; "" for not known
	Version     string // of the engine; "" for not known
	BlockSize   int    // tokens, 0 for not known
	Sources     []uint32
	Problems    []string
	Draining    bool // it is to get nothing more
	Files       []File
	MaxModelLen int // tokens, 0 for not known
	Listing     Listing
}

// Listing says whether a router has to ask an engine itself what it serves.
type Listing uint8

// The listings.
const (
	ListingNone    Listing = iota // it has: the node does not ask, or gets no answer
	ListingAwaited                // it has not: the engine has not answered the node in its present life
	ListingTold                   // it has not: models, adapters and length are all that the engine says
)

// Adapter is a LoRA adapter that an engine tells of.
type Adapter struct {
	Name   string
	Path   string // what it was loaded from
	Parent string // served name of the base weights that it is on; "" for not known
}

// File is a file of a model's tokenizer that a node offers.
type File struct {
	Name   string
	SHA256 [sha256.Size]byte // of the content
	Size   int64             // bytes
}

func (r Replica) proto() *feedpb.Replica {
	p := &feedpb.Replica{
		Endpoint: r.Endpoint, Pool: r.Pool, Models: r.Models, Engine: r.Engine, Version: r.Version, BlockSize: count32(r.BlockSize), Sources: r.Sources,
		Problems: r.Problems, Draining: r.Draining, MaxModelLen: count32(r.MaxModelLen), Listing: feedpb.Listing(r.Listing),
	}
	for _, a := range r.Adapters {
		p.Adapters = append(p.Adapters, &feedpb.Adapter{Name: a.Name, Path: a.Path, Parent: a.Parent})
	}
	for _, f := range r.Files {
		p.Files = append(p.Files, &feedpb.File{Name: f.Name, Sha256: f.SHA256[:], Size: uint64(max(f.Size, 0))})
	}
	return p
}

// valid is the replica with names as they can be sent: engines and configurations may have any bytes. Served names that are too long are left out, since part
// of one names nothing.
func (r Replica) valid() Replica {
	r.Models = slices.DeleteFunc(slices.Clone(r.Models), func(name string) bool { return len(name) > maxServed })
	r.Adapters = slices.DeleteFunc(slices.Clone(r.Adapters), func(a Adapter) bool { return max(len(a.Name), len(a.Parent)) > maxServed })
	r.Problems, r.Files = slices.Clone(r.Problems), slices.Clone(r.Files)
	for i, m := range r.Models {
		r.Models[i] = valid(m, maxServed)
	}
	for i, p := range r.Problems {
		r.Problems[i] = valid(p, maxName)
	}
	r.Engine, r.Version = valid(r.Engine, maxName), valid(r.Version, maxName)
	r.Endpoint, r.Pool = strings.ToValidUTF8(r.Endpoint, "�"), strings.ToValidUTF8(r.Pool, "�")
	for i, a := range r.Adapters {
		r.Adapters[i] = Adapter{Name: valid(a.Name, maxServed), Path: valid(a.Path, maxPath), Parent: valid(a.Parent, maxServed)}
	}
	for i := range r.Files {
		r.Files[i].Name = valid(r.Files[i].Name, maxName)
	}
	return r
}

// check says what makes a replica one that no router takes.
func (r Replica) check() error {
	err := errors.Join(
		short("endpoint", r.Endpoint, maxEndpoint), short("pool", r.Pool, maxName), short("engine", r.Engine, maxName), short("version", r.Version, maxName),
		few("models", len(r.Models), maxModels), few("adapters", len(r.Adapters), maxAdapters), few("sources", len(r.Sources), maxSources),
		few("problems", len(r.Problems), maxProblems), few("files", len(r.Files), maxFiles),
	)
	switch {
	case r.Endpoint == "":
		err = errors.Join(err, errors.New("no endpoint"))
	case r.Pool == "":
		err = errors.Join(err, errors.New("no pool"))
	}
	if err != nil {
		return err
	}
	for _, m := range r.Models {
		err = cmp.Or(err, short("model", m, maxServed))
	}
	for _, a := range r.Adapters {
		err = cmp.Or(err, short("adapter", a.Name, maxServed), short("adapter's path", a.Path, maxPath), short("adapter's parent", a.Parent, maxServed))
	}
	for _, p := range r.Problems {
		err = cmp.Or(err, short("problem", p, maxName))
	}
	for _, f := range r.Files {
		err = cmp.Or(err, short("file", f.Name, maxName))
		if f.Size < 0 {
			err = cmp.Or(err, fmt.Errorf("file of %d bytes", f.Size))
		}
	}
	return err
}

// replicaOf reads a received replica. Its lists are not shared with p.
func replicaOf(p *feedpb.Replica) (Replica, error) {
	r := Replica{
		Endpoint: p.GetEndpoint(), Pool: p.GetPool(), Models: append([]string(nil), p.GetModels()...), Engine: p.GetEngine(), Version: p.GetVersion(),
		BlockSize: count(p.GetBlockSize()), Sources: append([]uint32(nil), p.GetSources()...), Problems: append([]string(nil), p.GetProblems()...),
		Draining: p.GetDraining(), MaxModelLen: count(p.GetMaxModelLen()),
	}
	for _, a := range p.GetAdapters() {
		r.Adapters = append(r.Adapters, Adapter{Name: a.GetName(), Path: a.GetPath(), Parent: a.GetParent()})
	}
	switch p.GetListing() {
	case feedpb.Listing_LISTING_AWAITED:
		r.Listing = ListingAwaited
	case feedpb.Listing_LISTING_TOLD:
		r.Listing = ListingTold
	} // else there is none, or one of a newer node
	for _, f := range p.GetFiles() {
		if len(f.GetSha256()) != sha256.Size {
			return Replica{}, fmt.Errorf("file with a hash of %d bytes", len(f.GetSha256()))
		}
		if f.GetSize() > math.MaxInt64 {
			return Replica{}, fmt.Errorf("file of %d bytes", f.GetSize())
		}
		r.Files = append(r.Files, File{Name: f.GetName(), SHA256: [sha256.Size]byte(f.GetSha256()), Size: int64(f.GetSize())})
	}
	return r, r.check()
}

// count is a received number of something, bounded so that sums of many do not overflow.
func count(n uint32) int { return int(min(n, math.MaxInt32)) }

// count32 is a number of something as it is sent.
func count32(n int) uint32 { return uint32(min(max(n, 0), math.MaxInt32)) }
