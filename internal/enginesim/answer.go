package enginesim

import "strings"

// words are what answers are made of, each short enough to be one piece with a space before it.
const words = "about after again all also and answer any are ask at back be before best book both but by call can case city clear " +
	"close code cost cut data day do each early end engine even every fact far fast few field file find first for form free from " +
	"full get give go good great group grow half hand has have help here high hold home how idea if in into is it just keep key " +
	"kind know large last late learn less let level light like line list little long look low made main make many may mean model " +
	"more most move much must name near need never new next night no node not note now number of off often old on once one only " +
	"open or order other our out over own part path plan play point quick rate reach read real rest right road room route rule " +
	"run same say see send set shared short show side small so some soon start state step still store such table take talk tell " +
	"test than that the then there they thing think this time to token told total tree true try turn two type under unit until up " +
	"use value very view want was water way we well what when where which while who why will with word work world would write year"

// vocab holds the pieces of answers and their ids.
type vocab struct {
	inner, first []string // " word", and "Word" for the beginning of an answer or what follows a newline
	innerID      []uint32
	firstID      []uint32
	text         map[uint32]string
}

func newVocab() *vocab {
	v := &vocab{text: map[uint32]string{tokenEndMsg: ""}}
	add := func(piece string) (uint32, bool) {
		id := pieceID(piece)
		if _, taken := v.text[id]; taken {
			return 0, false
		}
		v.text[id] = piece
		return id, true
	}
	for _, w := range strings.Fields(words) {
		if id, ok := add(" " + w); ok {
			v.inner, v.innerID = append(v.inner, " "+w), append(v.innerID, id)
		}
		w = strings.ToUpper(w[:1]) + w[1:]
		if id, ok := add(w); ok {
			v.first, v.firstID = append(v.first, w), append(v.firstID, id)
		}
	}
	return v
}

// answer returns the generator of an answer: the same for the same prompt on every engine. fresh says that the answer
// begins a message, so that its first word has no space before it. With a stop, token stop−1 is the end of the message.
func (v *vocab) answer(prompt []uint32, fresh bool, stop int) func(i int) uint32 {
	seed := uint64(len(prompt))
	for _, t := range prompt {
		seed = mix(seed ^ uint64(t))
	}
	return func(i int) uint32 {
		h := mix(seed + uint64(i)*0x9e3779b97f4a7c15)
		switch {
		case i+1 == stop:
			return tokenEndMsg
		case i == 0 && fresh:
			return v.firstID[h%uint64(len(v.firstID))]
		default:
			return v.innerID[h%uint64(len(v.innerID))]
		}
	}
}

// detokenize appends the text of generated tokens.
func (v *vocab) detokenize(dst []byte, tokens []uint32) []byte {
	for _, t := range tokens {
		dst = append(dst, v.text[t]...)
	}
	return dst
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
