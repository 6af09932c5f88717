package subscriber

import (
	"bytes"
	"slices"
)

// copyClass names the place of a copy: medium, group, locality and owner. It
// is an index into copySet.classes.
type copyClass uint8

// Bounds of what a peer says of copies.
const (
	maxCopyClasses  = 64
	maxGroups       = 16
	maxPlace        = 256 // bytes of the name of a medium, locality or owner
	copiesPerBlock  = 4   // classes per block beyond its first, over all blocks
	lapsesPerBlocks = 2   // blocks of the mirror's bound for each copy that may end by time
)

type copyKind struct {
	medium    Medium
	name      []byte // of the medium; empty for the device
	group     int64
	hasGroup  bool
	locality  []byte
	ownership []byte

	assumed bool   // no event told of its copies, and none names them
	lapses  bool   // its copies end by time, and there is one per block at most
	mask    uint32 // full-attention groups that the copy serves
}

// copyList counts the copies of one block by class: the first class inline,
// the few others chained through copySet.more.
type copyList struct {
	count uint32 // of class; 0 only when there are no copies at all
	more  uint32
	class copyClass
}

func (l *copyList) none() bool { return l.count == 0 }

type copyNode struct {
	count uint32
	next  uint32
	class copyClass
}

// copySet holds the classes seen and the counts that do not fit inline.
type copySet struct {
	classes []copyKind
	more    []copyNode // 0 is no node
	maxMore int        // nodes at most
	free    uint32
}

func newCopySet(maxBlocks int) copySet {
	return copySet{more: make([]copyNode, 1), maxMore: 1 + copiesPerBlock*maxBlocks}
}

// find returns the class of an event's copies in a medium.
func (s *copySet) find(e *event, medium Medium) (copyClass, bool) {
	for i := range s.classes {
		k := &s.classes[i]
		if !k.assumed && k.medium == medium && k.hasGroup == e.hasGroup && k.group == e.group &&
			(medium == MediumDevice || bytes.EqualFold(k.name, e.medium)) &&
			bytes.EqualFold(k.locality, e.locality) && bytes.Equal(k.ownership, e.ownership) {
			return copyClass(i), true
		}
	}
	return 0, false
}

// intern is find, and enters the class when it is not there. It is false when
// there are too many, or when a name is too long to be kept.
func (s *copySet) intern(e *event, rule MediumRule, groups *groupSet) (copyClass, bool) {
	if c, ok := s.find(e, rule.Medium); ok {
		return c, true
	}
	if max(len(e.medium), len(e.locality), len(e.ownership)) > maxPlace {
		return 0, false
	}
	k := copyKind{
		medium: rule.Medium, group: e.group, hasGroup: e.hasGroup, lapses: rule.Lifetime > 0,
		locality: bytes.Clone(e.locality), ownership: bytes.Clone(e.ownership),
	}
	if k.medium != MediumDevice {
		k.name = bytes.Clone(e.medium)
	}
	return s.enter(k, groups)
}

// assume returns the class of copies in a medium that no event told of, of one
// group or of all. They end by time.
func (s *copySet) assume(medium Medium, group int64, hasGroup bool, groups *groupSet) (copyClass, bool) {
	for i := range s.classes {
		k := &s.classes[i]
		if k.assumed && k.medium == medium && k.hasGroup == hasGroup && k.group == group {
			return copyClass(i), true
		}
	}
	return s.enter(copyKind{medium: medium, group: group, hasGroup: hasGroup, assumed: true, lapses: true}, groups)
}

func (s *copySet) enter(k copyKind, groups *groupSet) (copyClass, bool) {
	if len(s.classes) == maxCopyClasses {
		return 0, false
	}
	k.mask = groups.mask(k.group, k.hasGroup)
	s.classes = append(s.classes, k)
	return copyClass(len(s.classes) - 1), true
}

// coldest returns the slowest medium of the classes, MediumNone while all are
// the device's.
func (s *copySet) coldest() Medium {
	coldest := MediumNone
	for i := range s.classes {
		if m := s.classes[i].medium; m != MediumDevice {
			coldest = max(coldest, m)
		}
	}
	return coldest
}

// has tells whether a block has a copy of a class.
func (s *copySet) has(l *copyList, c copyClass) bool { return s.count(l, c) > 0 }

// count returns how many copies of a class a block has.
func (s *copySet) count(l *copyList, c copyClass) uint32 {
	if l.none() {
		return 0
	}
	if l.class == c {
		return l.count
	}
	for n := l.more; n != 0; n = s.more[n].next {
		if s.more[n].class == c {
			return s.more[n].count
		}
	}
	return 0
}

// regroup works out the masks again after a group was added.
func (s *copySet) regroup(groups *groupSet) {
	for i := range s.classes {
		k := &s.classes[i]
		k.mask = groups.mask(k.group, k.hasGroup)
	}
}

// add counts one copy and tells whether it is the first of its class. It is
// not ok, and the copy not counted, when there are too many.
func (s *copySet) add(l *copyList, c copyClass) (first, ok bool) {
	if l.count == 0 {
		l.class, l.count = c, 1
		return true, true
	}
	if l.class == c {
		l.count++
		return false, true
	}
	for n := l.more; n != 0; n = s.more[n].next {
		if s.more[n].class == c {
			s.more[n].count++
			return false, true
		}
	}
	n := s.free
	switch {
	case n != 0:
		s.free = s.more[n].next
	case len(s.more) >= s.maxMore:
		return false, false
	default:
		s.more = append(s.more, copyNode{})
		n = uint32(len(s.more) - 1)
	}
	s.more[n] = copyNode{count: 1, next: l.more, class: c}
	l.more = n
	return true, true
}

// remove takes one copy off and tells whether it was the last of its class.
func (s *copySet) remove(l *copyList, c copyClass) bool {
	if l.count > 0 && l.class == c {
		if l.count > 1 {
			l.count--
			return false
		}
		n := l.more
		if n == 0 {
			l.count = 0
			return true
		}
		l.class, l.count, l.more = s.more[n].class, s.more[n].count, s.more[n].next
		s.put(n)
		return true
	}
	for at := &l.more; *at != 0; at = &s.more[*at].next {
		n := *at
		if s.more[n].class != c {
			continue
		}
		if s.more[n].count > 1 {
			s.more[n].count--
			return false
		}
		*at = s.more[n].next
		s.put(n)
		return true
	}
	return false
}

// drop forgets all copies of a block.
func (s *copySet) drop(l *copyList) {
	for n := l.more; n != 0; {
		next := s.more[n].next
		s.put(n)
		n = next
	}
	*l = copyList{}
}

func (s *copySet) put(n uint32) {
	s.more[n] = copyNode{next: s.free}
	s.free = n
}

// resident tells in which tiers a block is: those where the copies together
// serve every group in need.
func (s *copySet) resident(l *copyList, need uint32) (anyTier, device bool) {
	if l.count == 0 {
		return false, false
	}
	var anyMask, deviceMask uint32
	onDevice := false
	for c, n := l.class, l.more; ; c, n = s.more[n].class, s.more[n].next {
		k := &s.classes[c]
		anyMask |= k.mask
		if k.medium == MediumDevice {
			deviceMask |= k.mask
			onDevice = true
		}
		if n == 0 {
			break
		}
	}
	return anyMask&need == need, onDevice && deviceMask&need == need
}

// onDevice tells whether any copy is on the device.
func (s *copySet) onDevice(l *copyList) bool {
	_, ok := s.deviceClass(l)
	return ok
}

// deviceClass returns the class of a copy on the device.
func (s *copySet) deviceClass(l *copyList) (c copyClass, ok bool) {
	if l.count == 0 {
		return 0, false
	}
	for c, n := l.class, l.more; ; c, n = s.more[n].class, s.more[n].next {
		if s.classes[c].medium == MediumDevice {
			return c, true
		}
		if n == 0 {
			return 0, false
		}
	}
}

// groupSet holds the full-attention groups that device events have shown. A
// block counts while all of them have it.
type groupSet struct {
	groups []int64
	need   uint32 // one bit per group
}

func (g *groupSet) has(group int64) bool { return slices.Contains(g.groups, group) }

func (g *groupSet) add(group int64) (added, ok bool) {
	if g.has(group) {
		return false, true
	}
	if len(g.groups) == maxGroups {
		return false, false
	}
	g.need |= 1 << len(g.groups)
	g.groups = append(g.groups, group)
	return true, true
}

// mask returns the groups that a copy with this group serves: all of them when
// it names none, as offload tiers do.
func (g *groupSet) mask(group int64, hasGroup bool) uint32 {
	if !hasGroup {
		return 1<<maxGroups - 1
	}
	if i := slices.Index(g.groups, group); i >= 0 {
		return 1 << i
	}
	return 0
}
