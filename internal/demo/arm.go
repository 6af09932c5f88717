package demo

import (
	"context"
	"sync"

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
			if !lab.Wait(ctx, c.start) {
				return
			}
			messages := c.messages()
			for i, t := range c.turns {
				if i > 0 && !lab.Wait(ctx, t.think) {
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

// perEndpoint counts the requests of Envoy's access log by the address that answered them.
func perEndpoint(entries []lab.LogEntry) map[string]int {
	counts := map[string]int{}
	for _, e := range entries {
		counts[e.Upstream]++
	}
	return counts
}
