package approx

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/kvindex"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// strict is an index of which every match is checked.
func strict(t testing.TB, o Options) *Index {
	t.Helper()
	x, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if x.blocks, err = kvindex.New(kvindex.Options{CheckEvery: 1}); err != nil {
		t.Fatal(err)
	}
	return x
}

// held is how many leading keys the endpoints hold.
func (x *Index) held(keys []uint64, endpoints []*Endpoint, lives []uint64, l Limits, now time.Time) []int {
	out := make([]int, len(endpoints))
	for i, e := range endpoints {
		if s, ok := e.Slot(lives[i], l.Lifetime, now); ok {
			var held [1]kvindex.Held
			x.Match(keys, []kvindex.Slot{s}, held[:])
			out[i] = int(held[0].Any)
		}
	}
	return out
}

// slowEndpoint is Endpoint as a slice of keys, the latest used first: slow, and plain enough to be right.
type slowEndpoint struct {
	life uint64
	keys []uint64
	used map[uint64]time.Time
}

func (s *slowEndpoint) renew(life uint64) bool {
	if life > s.life {
		*s = slowEndpoint{life: life}
	}
	return life == s.life
}

func (s *slowEndpoint) expire(before time.Time) {
	for range expireStep {
		if n := len(s.keys); n > 0 && s.used[s.keys[n-1]].Before(before) {
			s.keys = s.keys[:n-1]
		}
	}
}

func (s *slowEndpoint) learn(keys []uint64, life uint64, room int, lifetime time.Duration, now time.Time) {
	keys = keys[:min(len(keys), room)]
	if len(keys) == 0 || !s.renew(life) {
		return
	}
	s.expire(now.Add(-lifetime))
	if s.used == nil {
		s.used = map[uint64]time.Time{}
	}
	for _, k := range keys {
		s.used[k] = now
	}
	s.keys = append(slices.Clone(keys), slices.DeleteFunc(s.keys, func(k uint64) bool { return slices.Contains(keys, k) })...)
	s.keys = s.keys[:min(len(s.keys), room)]
}

func (s *slowEndpoint) holds(keys []uint64) int {
	n := 0
	for n < len(keys) && slices.Contains(s.keys, keys[n]) {
		n++
	}
	return n
}

// Random prompts of a tree, deaths, pauses and changing limits: the index holds what the model does, and is closed under prefix throughout.
func TestAgainstModel(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			const endpoints = 3
			x := strict(t, Options{MaxBlocks: 1000})
			var all []*Endpoint
			lives := make([]uint64, endpoints)
			slow := make([]slowEndpoint, endpoints)
			for i := range endpoints {
				all = append(all, x.Endpoint("chat", fmt.Sprint(i)))
			}
			limits := Limits{Blocks: 40, Lifetime: time.Minute}
			now := epoch
			var prompts [][]uint64
			next := uint64(1)
			for range 1000 {
				var keys []uint64
				if len(prompts) > 0 && rnd.IntN(4) > 0 {
					p := prompts[rnd.IntN(len(prompts))]
					keys = slices.Clone(p[:rnd.IntN(len(p)+1)])
				}
				for range rnd.IntN(12) {
					keys = append(keys, next)
					next++
				}
				prompts = append(prompts, keys)
				if len(prompts) > 60 {
					prompts = prompts[1:]
				}
				now = now.Add(time.Duration(rnd.IntN(2000)) * time.Millisecond)
				i := rnd.IntN(endpoints)
				switch rnd.IntN(60) {
				case 0:
					lives[i]++
				case 1:
					all[i].Forget()
					slow[i] = slowEndpoint{life: slow[i].life}
				case 2:
					limits.Blocks = rnd.IntN(80)
				case 3:
					now = now.Add(time.Duration(rnd.IntN(90)) * time.Second)
				case 4: // too late
					all[i].Learn(keys, lives[i]-min(lives[i], 1), limits, now)
					slow[i].learn(keys, lives[i]-min(lives[i], 1), limits.Blocks, limits.Lifetime, now)
				}
				all[i].Learn(keys, lives[i], limits, now)
				slow[i].learn(keys, lives[i], limits.Blocks, limits.Lifetime, now)

				asked := prompts[rnd.IntN(len(prompts))]
				got := x.held(asked, all, lives, limits, now)
				for j := range slow {
					if len(slow[j].keys) > 0 {
						slow[j].renew(lives[j])
						slow[j].expire(now.Add(-limits.Lifetime))
					}
					if want := slow[j].holds(asked); got[j] != want {
						t.Fatalf("endpoint %d holds %d of %d keys, want %d", j, got[j], len(asked), want)
					}
					if got, want := all[j].Blocks(), len(slow[j].keys); got != want {
						t.Fatalf("endpoint %d has %d keys, want %d", j, got, want)
					}
				}
			}
			if st := x.blocks.Stats(); !x.Sound() || st.Checks == 0 {
				t.Errorf("%d differences in %d checks", st.Differences, st.Checks)
			}
			for _, e := range all {
				e.Close()
			}
			if st := x.blocks.Stats(); st.Blocks != 0 || st.Slots != 0 {
				t.Errorf("after all closed: %+v", st)
			}
		})
	}
}
