package subscriber

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"slices"
	"time"
)

// Errors that say what is wrong with a file.
var (
	errNoMirror     = errors.New("not a saved mirror")
	errChecksum     = errors.New("the checksum is not that of the content")
	errForeign      = errors.New("saved for another endpoint or with other settings")
	errVersion      = errors.New("saved by another version of kvsteer")
	errSavedTooLong = errors.New("larger than a mirror may be")
)

// savedHead is what a file says beside the blocks.
type savedHead struct {
	position position
	saved    time.Time
	blocks   int
}

// load fills an empty fold from a file of so many bytes. With an error the fold is empty. It takes no more memory than a mirror of
// its bound does, and no more than a few times the file's size.
func (f *fold) load(r io.Reader, size int64, id identity) (savedHead, error) {
	head, err := f.read(r, size, id)
	if err != nil {
		f.mirror.clear()
		f.learned = learned{}
		return savedHead{}, err
	}
	f.mirror.work = 0
	return head, nil
}

func (f *fold) read(r io.Reader, size int64, id identity) (savedHead, error) {
	if size > maxSaved(f.mirror.maxBlocks) {
		return savedHead{}, fmt.Errorf("%d bytes: %w", size, errSavedTooLong)
	}
	if size < int64(len(saveMagic)+2+sha256.Size) {
		return savedHead{}, fmt.Errorf("%d bytes: %w", size, errNoMirror)
	}
	sum := sha256.New()
	in := &savedReader{r: bufio.NewReaderSize(io.TeeReader(io.LimitReader(r, size-sha256.Size), sum), 64<<10), left: size - sha256.Size}
	if string(in.bytes(len(saveMagic))) != saveMagic {
		return savedHead{}, errNoMirror
	}
	if v := in.u16(); v != saveVersion {
		// Before the checksum, as that may stand elsewhere.
		return savedHead{}, fmt.Errorf("version %d, want %d: %w", v, saveVersion, errVersion)
	}
	head, foreign := f.readHead(in, id)
	if in.err == nil && foreign == nil {
		in.err = f.mirror.readBlocks(in, head.blocks)
	}
	if in.err == nil && foreign == nil && in.left != 0 {
		in.err = fmt.Errorf("%d bytes after the last block", in.left)
	}
	if err := checkSum(in.r, r, sum); err != nil {
		return savedHead{}, err
	}
	if err := errors.Join(foreign, in.err); err != nil {
		return savedHead{}, err
	}
	return head, f.mirror.rejoin()
}

// checkSum reads what is left and compares the checksum at the end of r with that of what stands before it.
func checkSum(rest io.Reader, r io.Reader, sum hash.Hash) error {
	if _, err := io.Copy(io.Discard, rest); err != nil {
		return err
	}
	var want [sha256.Size]byte
	if _, err := io.ReadFull(r, want[:]); err != nil {
		return fmt.Errorf("read the checksum: %w", err)
	}
	if !bytes.Equal(sum.Sum(nil), want[:]) {
		return errChecksum
	}
	return nil
}

// readHead reads everything before the blocks. foreign says that the file is of another endpoint, or of other settings.
func (f *fold) readHead(in *savedReader, id identity) (head savedHead, foreign error) {
	namespace, settings := in.u64(), in.u64()
	pool, endpoint, rank := in.text(maxIdentity), in.text(maxIdentity), in.u16()
	if string(pool) != id.pool || string(endpoint) != id.endpoint || int(rank) != id.rank || namespace != id.namespace() || settings != id.settings {
		foreign = errForeign
	}
	head.position = position{seq: in.u64(), seen: true}
	copy(head.position.digest[:], in.bytes(len(head.position.digest)))
	head.position.complete = in.flag()
	head.position.start = in.u64()
	head.saved = time.Unix(int64(in.u64()), 0)
	f.learned.blockSize = int(in.uvarint(math.MaxInt32))
	learned := in.u32()
	for i, v := range f.learned.bools() {
		*v = learned&(1<<i) != 0
		learned &^= 1 << i
	}
	if learned != 0 {
		in.fail("what was learned has bits %#x", learned)
	}
	f.mirror.readPlaces(in)
	head.blocks = int(in.u32())
	switch {
	case in.err != nil:
	case head.blocks > f.mirror.maxBlocks:
		in.fail("%d blocks, want at most %d: %w", head.blocks, f.mirror.maxBlocks, errSavedTooLong)
	case int64(head.blocks)*minSavedBlock > in.left:
		in.fail("%d blocks in %d bytes", head.blocks, in.left)
	}
	return head, foreign
}

// readPlaces reads groups and classes.
func (m *mirror) readPlaces(in *savedReader) {
	for range in.count(maxGroups) {
		if added, ok := m.groups.add(int64(in.u64())); !added || !ok {
			in.fail("a group twice")
		}
	}
	for range in.count(maxCopyClasses) {
		flags := in.byte()
		k := copyKind{
			hasGroup: flags&classHasGroup != 0, lapses: flags&classLapses != 0, assumed: flags&classAssumed != 0,
			medium: Medium(in.byte()), group: int64(in.u64()), name: in.text(maxPlace), locality: in.text(maxPlace), ownership: in.text(maxPlace),
		}
		if flags >= classAssumed<<1 || k.medium == MediumNone || k.medium > MediumDisk {
			in.fail("class with bits %#x in medium %d", flags, k.medium)
		}
		if slices.ContainsFunc(m.copies.classes, k.same) {
			in.fail("a class twice")
		}
		m.copies.enter(k, &m.groups)
	}
}

// same tells whether two classes are of the same copies. Were both there, the copies of one could never be removed.
func (k *copyKind) same(o copyKind) bool {
	return o.medium == k.medium && o.assumed == k.assumed && o.hasGroup == k.hasGroup && o.group == k.group &&
		bytes.EqualFold(o.name, k.name) && bytes.EqualFold(o.locality, k.locality) && bytes.Equal(o.ownership, k.ownership)
}

// readBlocks enters n blocks, not joined yet.
func (m *mirror) readBlocks(in *savedReader, n int) error {
	m.blocks = make([]block, 1, n+1)
	m.byHash, m.prints.byKey = newTableFor(n), newTableFor(n)
	var (
		last  uint64
		class = copyClass(math.MaxUint8)
	)
	for i := range n {
		flags := in.byte()
		var b block
		b.first, b.ambiguous, b.inferred = flags&saveFirst != 0, flags&saveAmbiguous != 0, flags&saveInferred != 0
		b.hash = in.u64()
		b.above = last
		if flags&saveFollows == 0 {
			b.above = in.u64()
		}
		b.content = in.u64()
		if flags&saveSame == 0 {
			class = m.copies.readCopies(in, &b.copies)
		} else if int(class) < len(m.copies.classes) {
			b.copies = copyList{count: 1, class: class}
		}
		switch {
		case in.err != nil:
			return in.err
		case flags >= saveInferred<<1 || i == 0 && flags&saveFollows != 0 || b.copies.none():
			return fmt.Errorf("block %d with bits %#x", i, flags)
		case m.byHash.get(b.hash) != 0:
			return fmt.Errorf("block %d: its hash is there twice", i)
		}
		m.blocks = append(m.blocks, b)
		m.byHash.put(b.hash, uint32(len(m.blocks)-1))
		last = b.hash
	}
	m.present = n
	return nil
}

// readCopies reads the copies of one block and returns the class of the last.
func (s *copySet) readCopies(in *savedReader, l *copyList) (last copyClass) {
	n := in.uvarint(maxCopyClasses)
	for range n {
		c, count := copyClass(in.byte()), uint32(in.uvarint(math.MaxUint32))
		if in.err != nil {
			return 0
		}
		if int(c) >= len(s.classes) || s.classes[c].lapses || count == 0 {
			in.fail("%d copies of class %d", count, c)
			return 0
		}
		first, ok := s.add(l, c)
		switch {
		case !first || !ok:
			in.fail("copies of class %d twice, or too many", c)
			return 0
		case l.more == 0:
			l.count = count
		default:
			s.more[l.more].count = count
		}
		last = c
	}
	return last
}

// rejoin joins blocks that were entered in any order and works out which are rooted. It is an error when one is its own ancestor.
func (m *mirror) rejoin() error {
	for id := 1; id < len(m.blocks); id++ {
		if b := &m.blocks[id]; !b.first {
			m.attach(uint32(id), m.byHash.get(b.above))
		}
	}
	reached := 0
	for id := 1; id < len(m.blocks); id++ {
		if m.blocks[id].parent != 0 {
			continue
		}
		m.stack = append(m.stack[:0], uint32(id))
		for len(m.stack) > 0 {
			b := &m.blocks[m.stack[len(m.stack)-1]]
			m.stack = m.stack[:len(m.stack)-1]
			reached++
			for c := b.child; c != 0; c = m.blocks[c].next {
				m.stack = append(m.stack, c)
			}
		}
	}
	if reached != m.present {
		return errors.New("blocks that are their own ancestors")
	}
	for id := 1; id < len(m.blocks); id++ {
		m.place(uint32(id))
		if m.blocks[id].first {
			m.settle(uint32(id))
		}
	}
	return nil
}

// savedReader reads the fields of a file. After an error it returns zeros.
type savedReader struct {
	r    *bufio.Reader
	left int64 // bytes before the checksum
	buf  [32]byte
	err  error
}

func (r *savedReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

// bytes returns the next n ≤ 32 bytes. They are valid until the next call.
func (r *savedReader) bytes(n int) []byte {
	clear(r.buf[:n])
	r.fill(r.buf[:n])
	return r.buf[:n]
}

func (r *savedReader) fill(b []byte) {
	if r.err != nil {
		return
	}
	if int64(len(b)) > r.left {
		r.err = io.ErrUnexpectedEOF
		return
	}
	n, err := io.ReadFull(r.r, b)
	r.left -= int64(n)
	if err != nil {
		r.err = fmt.Errorf("read: %w", err)
	}
}

func (r *savedReader) byte() byte  { return r.bytes(1)[0] }
func (r *savedReader) u16() uint16 { return binary.LittleEndian.Uint16(r.bytes(2)) }
func (r *savedReader) u32() uint32 { return binary.LittleEndian.Uint32(r.bytes(4)) }
func (r *savedReader) u64() uint64 { return binary.LittleEndian.Uint64(r.bytes(8)) }

func (r *savedReader) flag() bool {
	b := r.byte()
	if b > 1 {
		r.fail("%d where 0 or 1 stands", b)
	}
	return b == 1
}

// count returns a byte that is at most most.
func (r *savedReader) count(most int) int {
	n := int(r.byte())
	if n > most {
		r.fail("%d of at most %d", n, most)
		return 0
	}
	return n
}

func (r *savedReader) uvarint(most uint64) uint64 {
	var n uint64
	for shift := 0; ; shift += 7 {
		b := r.byte()
		n |= uint64(b&0x7f) << shift
		if r.err == nil && (shift > 56 || n > most) {
			r.fail("a number above %d", most)
		}
		if r.err != nil {
			return 0
		}
		if b < 0x80 {
			return n
		}
	}
}

// text returns a text of at most most bytes, nil for an empty one.
func (r *savedReader) text(most int) []byte {
	n := r.uvarint(uint64(most))
	if n == 0 || int64(n) > r.left {
		if n != 0 {
			r.fail("a text of %d bytes where %d are left", n, r.left)
		}
		return nil
	}
	b := make([]byte, n)
	r.fill(b)
	return b
}
