package kvindex

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"
)

// The blocks are spread over shards by the top bits of their key's hash. A shard is one open-addressing table with linear
// probing; it grows and shrinks by itself, so that no operation ever touches more than one shard's entries, and the
// table that is being replaced is a small part of the whole. Entries hold no pointers: the collector does not scan them.
const (
	shardBits  = 8
	shardCount = 1 << shardBits
	shardBytes = int64(unsafe.Sizeof(shard{}))
	entryBytes = int64(unsafe.Sizeof(entry{}))
	minEntries = 8
)

// A table is filled to at least 11/20 (above minEntries) and at most 4/5. It grows by 2/5, to a fill of 4/7, and shrinks to
// a fill of 2/3: at 16 bytes an entry, a block takes 20 to 29 bytes, and 28 right after growing. Beyond 4/5 the probes
// for absent keys, 13 at that fill, get long.
func mayFill(capacity int) int { return capacity * 4 / 5 }
func grown(capacity int) int   { return capacity + capacity*2/5 }
func shrunk(live int) int      { return max(minEntries, live*3/2+1) }
func isSparse(live, capacity int) bool {
	return capacity > minEntries && live*20 < capacity*11
}

// entry is one block: its key, and the ids of its two holder sets packed into one word, device in the low half. A word of
// zero marks an empty entry, since a block without holders is deleted.
type entry struct {
	key  atomic.Uint64
	word atomic.Uint64
}

type table struct {
	seed    uint64
	entries []entry
}

// shard guards one table. Readers take no lock: see load.
type shard struct {
	bytes *atomic.Int64 // of all shards' tables

	mu sync.Mutex // held by writers

	// version is odd while entries are being moved within the table. Replacing the word of an entry, filling an empty
	// entry and replacing the whole table leave every reader with a word that was right at some moment of its read, and
	// need no version.
	version atomic.Uint64
	table   atomic.Pointer[table]

	live int // entries in use
	_    [24]byte
}

func (s *shard) init(x *Index) {
	s.bytes = &x.tableBytes
	s.replace(&table{seed: x.seed, entries: make([]entry, minEntries)})
}

// hash mixes a key with the index's seed. Its top bits choose the shard, the rest the place in the shard's table.
func hash(seed, key uint64) uint64 {
	hi, lo := bits.Mul64(key^seed, 0x9e3779b97f4a7c15)
	return hi ^ lo
}

func (x *Index) shard(h uint64) *shard { return &x.shards[h>>(64-shardBits)] }

// word returns the holder sets of a key as they were at one moment during the call.
func (x *Index) word(key uint64) uint64 {
	h := hash(x.seed, key)
	return x.shard(h).load(h, key)
}

// touch brings the entry where the search for a key begins into the processor's caches. Nothing waits for what it loads.
func (x *Index) touch(key uint64) {
	h := hash(x.seed, key)
	t := x.shard(h).table.Load()
	t.entries[t.place(h)].word.Load()
}

// loadTries is how often load tries to read past a writer that moves entries before it waits for it.
const loadTries = 4

// load returns the word of a key, zero when the table has no such key.
func (s *shard) load(h, key uint64) uint64 {
	for range loadTries {
		version := s.version.Load()
		if version&1 != 0 {
			continue
		}
		word := s.table.Load().find(h, key)
		if s.version.Load() == version {
			return word
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.Load().find(h, key)
}

// place returns where the search for a hash begins.
func (t *table) place(h uint64) int {
	i, _ := bits.Mul64(h<<shardBits, uint64(len(t.entries)))
	return int(i)
}

// find returns the word of a key, zero when it has none. A writer may be at work: the caller checks the version.
func (t *table) find(h, key uint64) uint64 {
	i := t.place(h)
	for range t.entries {
		e := &t.entries[i]
		word := e.word.Load() // before the key: an entry is filled key first
		if word == 0 {
			return 0
		}
		if e.key.Load() == key {
			return word
		}
		if i++; i == len(t.entries) {
			i = 0
		}
	}
	return 0
}

// seek returns the entry of a key, or the empty entry where it belongs. The caller holds the shard's lock.
func (t *table) seek(h, key uint64) int {
	i := t.place(h)
	for {
		e := &t.entries[i]
		if e.word.Load() == 0 || e.key.Load() == key {
			return i
		}
		if i++; i == len(t.entries) {
			i = 0
		}
	}
}

// insert fills the empty entry i that seek found for a key, in a bigger table if this one is full.
func (s *shard) insert(i int, h, key, word uint64) {
	t := s.table.Load()
	if s.live+1 > mayFill(len(t.entries)) {
		t = s.resize(grown(len(t.entries)))
		i = t.seek(h, key)
	}
	t.entries[i].key.Store(key)
	t.entries[i].word.Store(word)
	s.live++
}

// remove empties entry i and closes the gap: entries behind it that were pushed away from their place move up.
func (s *shard) remove(i int) {
	t := s.table.Load()
	n := len(t.entries)
	s.version.Add(1)
	for j := i; ; {
		if j++; j == n {
			j = 0
		}
		e := &t.entries[j]
		word := e.word.Load()
		if word == 0 {
			break
		}
		key := e.key.Load()
		if behind(j, t.place(hash(t.seed, key)), n) >= behind(j, i, n) {
			t.entries[i].key.Store(key)
			t.entries[i].word.Store(word)
			i = j
		}
	}
	t.entries[i].word.Store(0)
	s.version.Add(1)
	s.live--
}

// behind returns how many entries i lies behind from, around the end of a table of n.
func behind(i, from, n int) int {
	if i -= from; i < 0 {
		i += n
	}
	return i
}

// shrink gives memory back after removals.
func (s *shard) shrink() {
	if isSparse(s.live, len(s.table.Load().entries)) {
		s.resize(shrunk(s.live))
	}
}

// resize moves all entries to a table of the given capacity. Readers go on in the old one, which no longer changes.
func (s *shard) resize(capacity int) *table {
	old := s.table.Load()
	t := &table{seed: old.seed, entries: make([]entry, capacity)}
	for i := range old.entries {
		word := old.entries[i].word.Load()
		if word == 0 {
			continue
		}
		key := old.entries[i].key.Load()
		e := &t.entries[t.seek(hash(t.seed, key), key)]
		e.key.Store(key)
		e.word.Store(word)
	}
	s.replace(t)
	return t
}

func (s *shard) replace(t *table) {
	old := 0
	if o := s.table.Load(); o != nil {
		old = len(o.entries)
	}
	s.bytes.Add(int64(len(t.entries)-old) * entryBytes)
	s.table.Store(t)
}
