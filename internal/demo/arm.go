package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// played is one finished request of an arm.
type played struct {
	turn  int // 0 for the first of a conversation
	reply lab.Reply
}

// play sends the whole workload through a site. Each conversation waits for its answers; conversations do not wait for each
// other. done is called after each request.
func play(ctx context.Context, site *lab.Site, model string, script []conversation, done func(lab.Reply)) []played {
	client := site.Client()
	defer client.Close()
	var mu sync.Mutex
	var all []played
	var wg sync.WaitGroup
	for _, c := range script {
		wg.Go(func() {
			if !wait(ctx, c.start) {
				return
			}
			messages := c.messages()
			for i, t := range c.turns {
				if i > 0 && !wait(ctx, t.think) {
					return
				}
				messages = append(messages, lab.Message{Role: "user", Content: t.user})
				reply := client.Chat(ctx, lab.ChatRequest{Model: model, Messages: messages, MaxTokens: t.answer})
				if ctx.Err() != nil {
					return
				}
				mu.Lock()
				all = append(all, played{turn: i, reply: reply})
				mu.Unlock()
				done(reply)
				messages = append(messages, lab.Message{Role: "assistant", Content: reply.Text})
			}
		})
	}
	wg.Wait()
	return all
}

func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// perEndpoint counts the requests of Envoy's access log by the address that answered them. It waits until the log holds want
// requests, because Envoy flushes it in the background.
func perEndpoint(ctx context.Context, path string, want int) (map[string]int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Second, fmt.Errorf("Envoy's access log holds fewer than %d requests", want))
	defer cancel()
	for {
		counts, n, err := countLog(path)
		if err != nil {
			return nil, err
		}
		if n >= want {
			return counts, nil
		}
		if !wait(ctx, 20*time.Millisecond) {
			return nil, fmt.Errorf("read %s: %w", path, context.Cause(ctx))
		}
	}
}

func countLog(path string) (map[string]int, int, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, fmt.Errorf("read Envoy's access log: %w", err)
	}
	defer f.Close()
	counts, n := map[string]int{}, 0
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var entry struct {
			Upstream string `json:"upstream"`
		}
		if json.Unmarshal(lines.Bytes(), &entry) != nil {
			break // a line still being written
		}
		counts[entry.Upstream]++
		n++
	}
	return counts, n, lines.Err()
}
