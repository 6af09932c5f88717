package subscriber

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// file returns a snapshot as it stands in a file.
func (s snapshot) file() []byte {
	b := slices.Concat(s...)
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

// sealed returns b, whose checksum was cut off or not of it, with the right one.
func sealed(b []byte) []byte {
	return snapshot{b}.file()
}

func savedIdentity() identity { return identity{pool: "chat", endpoint: "127.0.0.1:8000", rank: 1} }

func loadInto(f *fold, file []byte) (savedHead, error) {
	return f.load(bytes.NewReader(file), int64(len(file)), savedIdentity())
}

// TestSaveModel saves and restores mirrors of random histories, and wants the restored one to announce the same blocks and to do the same
// with every batch that follows.
func TestSaveModel(t *testing.T) {
	restored, announced := 0, 0
	for seed := range uint64(150) {
		m := newModel(rand.New(rand.NewPCG(seed, 4)), false)
		sink := newCheckedSink(t)
		o := foldOptions{pool: "chat", sink: sink, media: map[string]MediumRule{"disk": {Medium: MediumDisk}}}
		f := newFold(o)
		for n := 0; n < 1000; {
			_, _ = foldModel(t, m, f, sink, &n)
			if m.rnd.IntN(10) > 0 {
				continue
			}
			p := position{seq: uint64(n), digest: digestOf([]byte{byte(n)}), seen: true, complete: n%2 == 0, start: uint64(n % 2)}
			again := newCheckedSink(t)
			o.sink = again
			g := newFold(o)
			g.quiet(true)
			head, err := loadInto(g, f.snapshot(savedIdentity(), p, time.Unix(99, 0)).file())
			if err != nil {
				t.Fatalf("seed %d, event %d: %v", seed, n, err)
			}
			if want := (savedHead{position: p, saved: time.Unix(99, 0), blocks: f.mirror.present}); head != want {
				t.Fatalf("seed %d, event %d: %+v, want %+v", seed, n, head, want)
			}
			if again.calls > 0 {
				t.Fatal("the sink heard of a mirror that is not proven")
			}
			g.quiet(false)
			f.mirror.forgetGhosts() // which are not saved
			restored++
			announced += len(again.tiers[Any])
			for range 20 {
				if err := g.mirror.check(); err != nil {
					t.Fatalf("seed %d, event %d: %v", seed, n, err)
				}
				if d := cmp.Diff(sink.tiers, again.tiers); d != "" {
					t.Fatalf("seed %d, event %d: announced (-saved +restored):\n%s", seed, n, d)
				}
				if d := cmp.Diff(f.mirror.saved(), g.mirror.saved()); d != "" {
					t.Fatalf("seed %d, event %d: blocks (-saved +restored):\n%s", seed, n, d)
				}
				if f.learned != g.learned || f.mirror.present != g.mirror.present {
					t.Fatalf("seed %d, event %d: %+v and %d blocks, want %+v and %d", seed, n, g.learned, g.mirror.present, f.learned, f.mirror.present)
				}
				batch := m.batch(&n)
				sink.begin()
				again.begin()
				want, err1 := f.fold(batch, time.Time{})
				got, err2 := g.fold(batch, time.Time{})
				want.bytes, got.bytes = 0, 0 // which are of how a mirror came to be
				if err1 != nil || err2 != nil || want != got {
					t.Fatalf("seed %d, event %d: %+v, %v, want %+v, %v", seed, n, got, err2, want, err1)
				}
			}
		}
	}
	if restored < 500 || announced < restored {
		t.Errorf("%d mirrors restored, %d blocks announced: nothing tested", restored, announced)
	}
}

// saved returns all that is saved of the blocks, by engine hash.
func (m *mirror) saved() map[uint64]string {
	blocks := map[uint64]string{}
	for hash, id := range m.byHash.all {
		b := &m.blocks[id]
		text := fmt.Append(nil, b.above, b.content, b.first, b.ambiguous, b.inferred)
		for c := range m.copies.classes {
			text = fmt.Append(text, " ", m.copies.count(&b.copies, copyClass(c)))
		}
		blocks[hash] = string(text)
	}
	return blocks
}

// batch draws a batch without folding it.
func (m *model) batch(n *int) []byte {
	var events []any
	for range 1 + m.rnd.IntN(16) {
		events = append(events, m.event())
	}
	*n += len(events)
	return packBatch(events...)
}

// savedSample is a fold with a block of each kind.
func savedSample(t testing.TB) *fold {
	t.Helper()
	f := newFold(foldOptions{pool: "chat", sink: &nullSink{}, maxBlocks: 64})
	for _, events := range [][]any{
		{st("", "abc"), st("a", "d"), st("z", "y"), st("", "x").with("group_idx", 3)},
		{st("", "a"), known("CPU", "ab"), known("CPU", "a").with("ownership", "kvcr")},
		{rm("b"), st("x", "d").with("group_idx", 3)},
	} {
		if _, err := f.fold(packBatch(events...), time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	f.mirror.blocks[f.mirror.byHash.get('c')].inferred = true
	return f
}

func samplePosition() position {
	return position{seq: 300, digest: digestOf([]byte("batch 300")), seen: true, complete: true, start: 0}
}

// TestSaveDamage flips every bit of a small file, cuts it at every length and adds to it, and wants each to be told and to leave an
// empty mirror.
func TestSaveDamage(t *testing.T) {
	good := savedSample(t).snapshot(savedIdentity(), samplePosition(), time.Unix(99, 0)).file()
	try := func(what string, file []byte) {
		t.Helper()
		f := newFold(foldOptions{pool: "chat", sink: &nullSink{}, maxBlocks: 64})
		if _, err := loadInto(f, file); err == nil {
			t.Errorf("%s is not noticed", what)
		}
		if !f.mirror.empty() || f.learned != (learned{}) {
			t.Errorf("%s: the mirror is not empty", what)
		}
	}
	for i := range good {
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << bit
			try(fmt.Sprintf("bit %d of byte %d", bit, i), bad)
		}
		try(fmt.Sprintf("a cut after %d bytes", i), good[:i])
	}
	try("a byte more", append(bytes.Clone(good), 0))
	try("the file twice", append(bytes.Clone(good), good...))
	f := newFold(foldOptions{pool: "chat", sink: &nullSink{}, maxBlocks: 64})
	if head, err := loadInto(f, good); err != nil || head.blocks != 6 {
		t.Errorf("%+v, %v", head, err)
	}
	if d := cmp.Diff(savedSample(t).mirror.saved(), f.mirror.saved()); d != "" {
		t.Errorf("blocks (-saved +restored):\n%s", d)
	}
}

// TestSaveRefused has files with a right checksum that no mirror may be made of.
func TestSaveRefused(t *testing.T) {
	f := savedSample(t)
	content := func(id identity) []byte {
		return slices.Concat(f.snapshot(id, samplePosition(), time.Unix(99, 0))...)
	}
	good := content(savedIdentity())
	blocks := bytes.Index(good, binary.LittleEndian.AppendUint64(nil, 'a')) - 1 // bits of block a
	edit := func(at int, with ...byte) []byte {
		b := bytes.Clone(good)
		copy(b[at:], with)
		return b
	}
	other := savedIdentity()
	other.endpoint = "127.0.0.1:8001"
	settings := savedIdentity()
	settings.settings = 1
	rank := savedIdentity()
	rank.rank = 0
	for name, tc := range map[string]struct {
		file []byte
		max  int
		want string
	}{
		"empty":              {nil, 64, "not a saved mirror"},
		"another file":       {[]byte(strings.Repeat("x", 100)), 64, "not a saved mirror"},
		"newer version":      {edit(8, 3), 64, "version 3, want 2"},
		"other namespace":    {edit(10, 1, 2, 3), 64, errForeign.Error()},
		"other endpoint":     {content(other), 64, errForeign.Error()},
		"other rank":         {content(rank), 64, errForeign.Error()},
		"other settings":     {content(settings), 64, errForeign.Error()},
		"more blocks":        {edit(blocks-4, 7), 64, "EOF"},
		"far more blocks":    {edit(blocks-4, 40), 64, "40 blocks in"},
		"too many blocks":    {edit(blocks-4, 7), 6, "larger than a mirror may be"},
		"fewer blocks":       {edit(blocks-4, 5), 64, "after the last block"},
		"unknown bits":       {edit(blocks, 0x21), 64, "block 0 with bits"},
		"no block before":    {append(edit(blocks, saveFirst|saveFollows)[:blocks+9:blocks+9], good[blocks+17:]...), 64, "block 0"},
		"a hash twice":       {edit(blocks+1, 'b'), 64, "there twice"},
		"far too long":       {make([]byte, maxSaved(64)), 64, "larger than a mirror may be"},
		"a class that is no": {edit(blocks+26, 9), 64, "of class 9"},
		"no copy":            {edit(blocks+25, 0), 64, "block 0 with bits"},
		"its own ancestor":   {loop(good, blocks), 64, "their own ancestors"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newFold(foldOptions{pool: "chat", sink: &nullSink{}, maxBlocks: tc.max})
			_, err := loadInto(g, sealed(tc.file))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if !g.mirror.empty() {
				t.Error("the mirror is not empty")
			}
		})
	}
}

// loop makes block a, the first of a sequence, a child of block b, which follows it.
func loop(content []byte, blocks int) []byte {
	b := bytes.Clone(content)
	b[blocks] &^= saveFirst
	copy(b[blocks+9:], binary.LittleEndian.AppendUint64(nil, 'b'))
	return b
}

// TestSaveLearned wants every field of what is learned to be saved.
func TestSaveLearned(t *testing.T) {
	fields := reflect.TypeFor[learned]()
	for i := range fields.NumField() {
		f, g := newFold(foldOptions{pool: "chat", sink: &nullSink{}}), newFold(foldOptions{pool: "chat", sink: &nullSink{}})
		switch v := reflect.ValueOf(&f.learned).Elem().Field(i); v.Kind() {
		case reflect.Bool:
			*f.learned.bools()[slices.IndexFunc(f.learned.bools(), func(b *bool) bool {
				return uintptr(v.Addr().UnsafePointer()) == uintptr(reflect.ValueOf(b).UnsafePointer())
			})] = true
		default:
			f.learned.blockSize = 16
		}
		if _, err := loadInto(g, f.snapshot(savedIdentity(), samplePosition(), time.Time{}).file()); err != nil {
			t.Fatal(err)
		}
		if f.learned != g.learned || f.learned == (learned{}) {
			t.Errorf("%s: %+v, want %+v", fields.Field(i).Name, g.learned, f.learned)
		}
	}
}

// TestSavedFields wants whoever adds a field to what a mirror knows to decide whether it is saved.
func TestSavedFields(t *testing.T) {
	for _, tc := range []struct {
		of   reflect.Type
		want []string
	}{
		{reflect.TypeFor[block](), []string{
			"hash", "above", "content", "first", "ambiguous", "inferred", "copies", // saved
			"parent", "child", "next", "prev", "print", "room", "rooted", "rootedDev", // worked out
			"fresh", "used", // left out: of copies that end by time, and of the order in which blocks go
		}},
		{reflect.TypeFor[copyKind](), []string{"medium", "name", "group", "hasGroup", "locality", "ownership", "assumed", "lapses", "mask"}},
		{reflect.TypeFor[mirror](), []string{
			"blocks", "groups", "copies", // saved
			"maxBlocks", "maxOrphans", "maxWork", "free", "byHash", "waiting", "present", "rooted", "prints", "room", "waited", "clock", "now", "withdrawn", "stack", "work", "proofs",
			"lapses", "ghosts", "keepGhosts", // left out
		}},
		{reflect.TypeFor[position](), []string{"seq", "digest", "seen", "complete", "start"}},
	} {
		var got []string
		for i := range tc.of.NumField() {
			got = append(got, tc.of.Field(i).Name)
		}
		slices.Sort(got)
		slices.Sort(tc.want)
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("fields of %s (-known to save +there):\n%s", tc.of, d)
		}
	}
}

// TestSaveLapses wants copies that end by time to be left out, and what follows them to be held back.
func TestSaveLapses(t *testing.T) {
	now := time.Unix(1000, 0)
	f := newFold(foldOptions{pool: "chat", sink: &nullSink{}})
	if _, err := f.fold(packBatch(st("", "abc")), now); err != nil {
		t.Fatal(err)
	}
	c, ok := f.mirror.copies.assume(MediumHost, 0, false, &f.mirror.groups)
	if !ok {
		t.Fatal("no class")
	}
	for _, hash := range "ab" {
		if !f.mirror.lapseAt(f.mirror.byHash.get(uint64(hash)), c, now.Add(time.Hour)) {
			t.Fatal("no copy")
		}
	}
	if _, err := f.fold(packBatch(rm("b")), now); err != nil {
		t.Fatal(err)
	}
	sink := newNamedSink()
	g := newFold(foldOptions{pool: "chat", sink: sink})
	g.quiet(true)
	head, err := loadInto(g, f.snapshot(savedIdentity(), samplePosition(), now).file())
	if err != nil || head.blocks != 2 {
		t.Fatalf("%+v, %v", head, err)
	}
	g.quiet(false)
	if d := cmp.Diff([]string{"+any a", "+dev a"}, sink.log); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	if err := g.mirror.check(); err != nil {
		t.Error(err)
	}
}

// FuzzLoad wants whatever stands in a file, with a checksum that is right or not, to be refused or to give a sound mirror that is saved
// as it was.
func FuzzLoad(f *testing.F) {
	good := slices.Concat(savedSample(f).snapshot(savedIdentity(), samplePosition(), time.Unix(99, 0))...)
	f.Add(good)
	f.Add(loop(good, bytes.Index(good, binary.LittleEndian.AppendUint64(nil, 'a'))-1))
	f.Add(slices.Concat(newFold(foldOptions{sink: &nullSink{}}).snapshot(savedIdentity(), position{}, time.Time{})...))
	f.Fuzz(func(t *testing.T, content []byte) {
		g := newFold(foldOptions{pool: "chat", sink: &nullSink{}, maxBlocks: 64})
		head, err := loadInto(g, sealed(content))
		if err != nil {
			if !g.mirror.empty() {
				t.Fatal("the mirror is not empty")
			}
			return
		}
		if err := g.mirror.check(); err != nil {
			t.Fatal(err)
		}
		again := newFold(foldOptions{pool: "chat", sink: &nullSink{}, maxBlocks: 64})
		second, err := loadInto(again, g.snapshot(savedIdentity(), head.position, head.saved).file())
		if err != nil || second != head || again.mirror.rooted != g.mirror.rooted || again.learned != g.learned {
			t.Fatalf("%+v, %v, want %+v", second, err, head)
		}
	})
}

func TestSavedName(t *testing.T) {
	seen := map[string]bool{}
	for _, tc := range []struct {
		pool, endpoint string
		rank           int
	}{
		{"chat", "127.0.0.1:8000", 0},
		{"chat", "127.0.0.1:8000", 1},
		{"chat", "[::1]:8000", 0},
		{"chat_127.0.0.1", "8000", 0},
		{"../../etc", "x/y", 0},
		{"..", "", 0},
		{"", "", 0},
		{strings.Repeat("a", 1000), "b", 0},
		{"münchen", "b\x00c\n", 0},
	} {
		name := savedName(tc.pool, tc.endpoint, tc.rank)
		if seen[name] || filepath.Base(name) != name || strings.HasPrefix(name, ".") || len(name) > 120 || strings.ContainsFunc(name, func(r rune) bool { return r > '~' || r <= ' ' }) {
			t.Errorf("%+v: %q", tc, name)
		}
		seen[name] = true
	}
	if got := savedName("chat", "127.0.0.1:8000", 0); !strings.HasPrefix(got, "chat_127.0.0.1_8000_0-") {
		t.Errorf("%q", got)
	}
}

// failingFile fails after some bytes, as a full disk does, or when it is synced or closed.
type failingFile struct {
	syncWriter
	room        int
	sync, close error
}

var errDiskFull = errors.New("no space left on device")

func (f *failingFile) Write(b []byte) (int, error) {
	if len(b) > f.room {
		n, _ := f.syncWriter.Write(b[:f.room])
		return n, errDiskFull
	}
	f.room -= len(b)
	return f.syncWriter.Write(b)
}

func (f *failingFile) Sync() error  { return errors.Join(f.syncWriter.Sync(), f.sync) }
func (f *failingFile) Close() error { return errors.Join(f.syncWriter.Close(), f.close) }

// TestSavedFile wants a file to be replaced as a whole or not at all.
func TestSavedFile(t *testing.T) {
	content := func(f savedFile) string {
		t.Helper()
		r, size, err := f.open()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		b, err := io.ReadAll(r)
		if err != nil || int64(len(b)) != size {
			t.Fatalf("%d of %d bytes, %v", len(b), size, err)
		}
		return string(b[:len(b)-sha256.Size])
	}
	for name, tc := range map[string]struct {
		fail func(f *savedFile)
		want string // of the error
	}{
		"disk full at once":     {func(f *savedFile) { f.failWith(&failingFile{}) }, "no space left"},
		"disk full in between":  {func(f *savedFile) { f.failWith(&failingFile{room: 5}) }, "no space left"},
		"disk full at the sum":  {func(f *savedFile) { f.failWith(&failingFile{room: 10}) }, "no space left"},
		"sync":                  {func(f *savedFile) { f.failWith(&failingFile{room: 1000, sync: errDiskFull}) }, "no space left"},
		"close":                 {func(f *savedFile) { f.failWith(&failingFile{room: 1000, close: errDiskFull}) }, "no space left"},
		"cannot be created":     {func(f *savedFile) { f.dir = filepath.Join(f.dir, "away") }, "no such file"},
		"a folder in the place": {func(f *savedFile) { f.name = "folder" }, "file exists"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			f := newSavedFile(dir, savedIdentity())
			if err := f.write(snapshot{[]byte("first")}); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(filepath.Join(dir, "folder"+savedSuffix), 0o700); err != nil {
				t.Fatal(err)
			}
			bad := f
			tc.fail(&bad)
			if err := bad.write(snapshot{[]byte("seco"), []byte("nd")}); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if got := content(f); got != "first" {
				t.Errorf("%q after a write that failed", got)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "*"+partialSuffix)); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			// A process that was killed in the middle leaves a part.
			if err := os.WriteFile(filepath.Join(dir, f.name+partialSuffix), []byte("half"), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := content(f); got != "first" {
				t.Errorf("%q beside a part", got)
			}
			if err := f.write(snapshot{[]byte("third")}); err != nil || content(f) != "third" {
				t.Errorf("%q, %v", content(f), err)
			}
			if info, err := os.Stat(f.path()); err != nil || info.Mode() != 0o600 {
				t.Errorf("mode %v, %v", info.Mode(), err)
			}
		})
	}
}

// failWith has the file be made and then fail.
func (f *savedFile) failWith(bad *failingFile) {
	create := f.create
	f.create = func(path string) (syncWriter, error) {
		w, err := create(path)
		bad.syncWriter = w
		return bad, err
	}
}

func TestStateDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	d := NewStateDir(dir)
	if err := d.Prepare(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
	other := NewStateDir(dir)
	if err := other.Prepare(); err == nil || !strings.Contains(err.Error(), "in use by another router") {
		t.Errorf("a folder that is held is prepared again: %v", err)
	}
	if err := errors.Join(d.Prepare(), d.Release(), other.Prepare(), other.Release(), other.Release(), d.Prepare()); err != nil {
		t.Errorf("a folder that was released: %v", err)
	}
	defer d.Release()
	for rank := range 3 {
		id := identity{pool: "chat", endpoint: "a:1", rank: rank}
		f := newSavedFile(dir, id)
		for range 2 { // one to be set aside, and one in use
			if err := f.write(newFold(foldOptions{sink: &nullSink{}}).snapshot(id, position{}, time.Time{})); err != nil {
				t.Fatal(err)
			}
			if rank == 1 {
				if err := f.setAside(); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
			}
		}
		if err := os.WriteFile(filepath.Join(dir, f.name+partialSuffix), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"notes.txt", "other.mirror"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("no mirror"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	left := func() (names []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			name, _, ok := strings.Cut(e.Name(), "-")
			if _, suffix, cut := strings.Cut(e.Name(), savedSuffix); ok && cut {
				name += savedSuffix + suffix
			}
			names = append(names, name)
		}
		slices.Sort(names)
		return names
	}
	if err := d.Forget("chat", "a:1", 1); err != nil {
		t.Error(err)
	}
	if err := d.Forget("chat", "never there", 1); err != nil {
		t.Error(err)
	}
	want := []string{"chat_a_1_0.mirror", "chat_a_1_0.mirror.part", "chat_a_1_2.mirror", "chat_a_1_2.mirror.part", "notes.txt", "other.mirror"}
	if diff := cmp.Diff(want, left()); diff != "" {
		t.Errorf("after Forget (-want +got):\n%s", diff)
	}
	if err := d.Retain([]Source{{"chat", "a:1", 2}, {"chat", "never there", 0}}); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"chat_a_1_2.mirror", "chat_a_1_2.mirror.part", "notes.txt", "other.mirror"}, left()); diff != "" {
		t.Errorf("after Retain (-want +got):\n%s", diff)
	}
	if err := errors.Join(NewStateDir("").Prepare(), NewStateDir("").Release(), NewStateDir("").Forget("chat", "a", 0), NewStateDir("").Retain(nil)); err != nil {
		t.Error(err)
	}
	file := filepath.Join(dir, "notes.txt")
	for name, path := range map[string]string{"a file": file, "below a file": filepath.Join(file, "x")} {
		if err := NewStateDir(path).Prepare(); err == nil {
			t.Errorf("%s is taken for a folder", name)
		}
	}
}
