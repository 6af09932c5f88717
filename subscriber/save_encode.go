package subscriber

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// A file holds one mirror. Numbers are little-endian, text and lists have their length before them:
//
//	"kvmirror"                     magic
//	version      uint16            saveVersion
//	namespace    uint64            of the fingerprints: another seed, hash or form of root gives another
//	settings     uint64            of what decides how events become blocks
//	pool, endpoint  text           rank uint16
//	sequence     uint64            of the last batch applied; its digest, 16 bytes
//	complete     byte              1: nothing is missing; start uint64, the first batch applied
//	saved        int64             Unix seconds
//	block size   uvarint           what else was learned of the engine, uint32 of bits
//	groups       byte, int64 each
//	classes      byte, each: bits, medium byte, group int64, name of the medium, locality and ownership as text
//	blocks       uint32, each as below
//	checksum     32 bytes          SHA-256 of all before
//
// and a block, 17 bytes when it follows its parent and has one copy as the block before it:
//
//	bits         byte              saveFirst, saveAmbiguous, saveFollows, saveSame, saveInferred
//	hash         uint64            engine hash
//	above        uint64            of the parent, or the chain's root; left out with saveFollows: the hash of the block before
//	content      uint64
//	copies       uvarint, each: class byte, count uvarint; left out with saveSame: one, of the class of the block before
//
// Left out are copies that end by time, the content kept of removed blocks, the order in which blocks left the device, and what healing
// has found out of the engine's hashes: a restored mirror knows less then, never more. Token ids are in no mirror.
const (
	saveMagic   = "kvmirror"
	saveVersion = 2

	saveFirst     = 1 << 0
	saveAmbiguous = 1 << 1
	saveFollows   = 1 << 2
	saveSame      = 1 << 3
	saveInferred  = 1 << 4

	classHasGroup = 1 << 0
	classLapses   = 1 << 1
	classAssumed  = 1 << 2
)

// Bounds of what a file holds, in bytes.
const (
	maxIdentity    = 1 << 10                                  // pool and endpoint each
	maxSavedHead   = 64<<10 + 2*maxIdentity                   // everything before the blocks
	minSavedBlock  = 1 + 8 + 8                                // of the shortest record
	maxSavedCopies = 10 + maxCopyClasses*(1+5)                // of the longest
	maxSavedBlock  = 1 + 8 + 8 + 8 + maxSavedCopies           // of the longest
	avgSavedBlock  = 1 + 8 + 8 + 8 + 1 + (1+copiesPerBlock)*6 // of a full mirror's blocks on average, at most
)

// maxSaved bounds the file of a mirror of so many blocks.
func maxSaved(blocks int) int64 { return maxSavedHead + int64(blocks)*avgSavedBlock + sha256.Size }

// identity says whose mirror a file holds, and what its blocks mean.
type identity struct {
	pool, endpoint string
	rank           int
	settings       uint64
}

// namespace stands for how fingerprints are made: seed and hash included.
func (i identity) namespace() uint64 { return blockhash.Namespace{Pool: i.pool, BlockSize: 1}.Root() }

// snapshot is the content of a file but for its checksum, in pieces.
type snapshot [][]byte

// saveChunk is the size of a snapshot's pieces.
const saveChunk = 1 << 20

// bools returns the fields of l that are saved as bits. New ones go to the end.
func (l *learned) bools() []*bool {
	return []*bool{&l.extraKeys, &l.plain, &l.noTokens, &l.bigrams, &l.full, &l.sizes, &l.hybrid, &l.lookahead, &l.pages, &l.forgot}
}

// snapshot returns the mirror, at a position, as the content of a file. The fold goes on at once: nothing in it is shared.
func (f *fold) snapshot(id identity, p position, now time.Time) snapshot {
	blocks, n := f.mirror.appendBlocks(make(snapshot, 1, 8))
	b := append(make([]byte, 0, 1<<10), saveMagic...)
	b = binary.LittleEndian.AppendUint16(b, saveVersion)
	b = binary.LittleEndian.AppendUint64(b, id.namespace())
	b = binary.LittleEndian.AppendUint64(b, id.settings)
	b = appendText(appendText(b, id.pool), id.endpoint)
	b = binary.LittleEndian.AppendUint16(b, uint16(id.rank))
	b = binary.LittleEndian.AppendUint64(b, p.seq)
	b = append(b, p.digest[:]...)
	b = append(b, packBits(p.complete))
	b = binary.LittleEndian.AppendUint64(b, p.start)
	b = binary.LittleEndian.AppendUint64(b, uint64(now.Unix()))
	b = binary.AppendUvarint(b, uint64(f.learned.blockSize))
	var learned uint32
	for i, v := range f.learned.bools() {
		if *v {
			learned |= 1 << i
		}
	}
	b = binary.LittleEndian.AppendUint32(b, learned)
	b = f.mirror.appendPlaces(b)
	blocks[0] = binary.LittleEndian.AppendUint32(b, uint32(n))
	return blocks
}

// appendPlaces appends groups and classes.
func (m *mirror) appendPlaces(b []byte) []byte {
	b = append(b, byte(len(m.groups.groups)))
	for _, g := range m.groups.groups {
		b = binary.LittleEndian.AppendUint64(b, uint64(g))
	}
	b = append(b, byte(len(m.copies.classes)))
	for i := range m.copies.classes {
		k := &m.copies.classes[i]
		b = append(b, packBits(k.hasGroup, k.lapses, k.assumed), byte(k.medium))
		b = binary.LittleEndian.AppendUint64(b, uint64(k.group))
		b = appendText(appendText(appendText(b, k.name), k.locality), k.ownership)
	}
	return b
}

// appendBlocks appends the blocks, in the order of their ids, and returns how many they are. A block all of whose copies end by
// time is left out.
func (m *mirror) appendBlocks(s snapshot) (snapshot, int) {
	var (
		n     int
		b     []byte
		last  uint64
		class copyClass
	)
	lapses := [maxCopyClasses]bool{}
	for i := range m.copies.classes {
		lapses[i] = m.copies.classes[i].lapses
	}
	for id := 1; id < len(m.blocks); id++ {
		k := &m.blocks[id]
		kept := 0
		if !k.copies.none() {
			kept = m.copies.kept(&k.copies, &lapses)
		}
		if kept == 0 {
			continue
		}
		if cap(b)-len(b) < maxSavedBlock {
			if b != nil {
				s = append(s, b)
			}
			b = make([]byte, 0, saveChunk)
		}
		flags := packBits(k.first, k.ambiguous, n > 0 && k.above == last, n > 0 && m.copies.single(&k.copies) && k.copies.class == class, k.inferred)
		b = append(b, flags)
		b = binary.LittleEndian.AppendUint64(b, k.hash)
		if flags&saveFollows == 0 {
			b = binary.LittleEndian.AppendUint64(b, k.above)
		}
		b = binary.LittleEndian.AppendUint64(b, k.content)
		if flags&saveSame == 0 {
			b, class = m.copies.appendCopies(b, &k.copies, kept, &lapses)
		}
		last = k.hash
		n++
	}
	if b != nil {
		s = append(s, b)
	}
	return s, n
}

// kept returns how many classes of a block's copies are saved.
func (s *copySet) kept(l *copyList, lapses *[maxCopyClasses]bool) int {
	n := 0
	for c, at := l.class, l.more; ; c, at = s.more[at].class, s.more[at].next {
		if !lapses[c] {
			n++
		}
		if at == 0 {
			return n
		}
	}
}

// single tells whether a block has one copy.
func (s *copySet) single(l *copyList) bool { return l.count == 1 && l.more == 0 }

// appendCopies appends the kept classes of a block's copies, and returns the last of them.
func (s *copySet) appendCopies(b []byte, l *copyList, kept int, lapses *[maxCopyClasses]bool) ([]byte, copyClass) {
	b = binary.AppendUvarint(b, uint64(kept))
	var last copyClass
	for c, count, at := l.class, l.count, l.more; ; c, count, at = s.more[at].class, s.more[at].count, s.more[at].next {
		if !lapses[c] {
			b = binary.AppendUvarint(append(b, byte(c)), uint64(count))
			last = c
		}
		if at == 0 {
			return b, last
		}
	}
}

func appendText[T string | []byte](b []byte, text T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// packBits packs its arguments, the first into the lowest bit.
func packBits(set ...bool) (b byte) {
	for i, v := range set {
		if v {
			b |= 1 << i
		}
	}
	return b
}
