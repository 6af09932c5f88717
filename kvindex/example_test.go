package kvindex_test

import (
	"fmt"

	"github.com/kvsteer/kvsteer/kvindex"
)

func Example() {
	x, err := kvindex.New(kvindex.Options{MaxSlots: 16})
	if err != nil {
		panic(err)
	}
	a, _ := x.Acquire()
	b, _ := x.Acquire()

	// Keys of a prompt's blocks, each chained to the one before it.
	prompt := []uint64{0x51, 0x52, 0x53, 0x54}

	// a has the whole prompt on its device. b has three blocks, the last of them in host memory only.
	_ = x.Store(a, kvindex.Any, prompt)
	_ = x.Store(a, kvindex.Device, prompt)
	_ = x.Store(b, kvindex.Any, prompt[:3])
	_ = x.Store(b, kvindex.Device, prompt[:2])

	held := make([]kvindex.Held, 2)
	x.Match(prompt, []kvindex.Slot{a, b}, held)
	fmt.Println("a:", held[0].Device, held[0].Any)
	fmt.Println("b:", held[1].Device, held[1].Any)

	// a evicts the last two blocks, children first. b restarts.
	_ = x.Remove(a, kvindex.Device, []uint64{0x54, 0x53})
	_ = x.Remove(a, kvindex.Any, []uint64{0x54, 0x53})
	old := b
	b, _ = x.Reset(b)
	fmt.Println("late delta:", x.Store(old, kvindex.Any, prompt))

	x.Match(prompt, []kvindex.Slot{a, b}, held)
	fmt.Println("a:", held[0].Device, held[0].Any)
	fmt.Println("b:", held[1].Device, held[1].Any)

	// Output:
	// a: 4 4
	// b: 2 3
	// late delta: slot is released
	// a: 2 2
	// b: 0 0
}
