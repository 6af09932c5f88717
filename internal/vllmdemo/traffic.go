package vllmdemo

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// seen is one finished request: what its client saw and what Envoy logged of it.
type seen struct {
	conversation, turn int
	kind               string
	request            lab.ChatRequest
	reply              lab.Reply
	entry              lab.LogEntry
}

// play holds the conversations, so many at a time, each turn after the answer to the one before. done is called after each
// request.
func (s *site) play(ctx context.Context, script []conversation, parallel int, done func()) ([]seen, error) {
	var mu sync.Mutex
	var all []seen
	var wg sync.WaitGroup
	next := make(chan int)
	for range parallel {
		wg.Go(func() {
			for i := range next {
				for _, one := range s.hold(ctx, script[i], done) {
					one.conversation = i
					mu.Lock()
					all = append(all, one)
					mu.Unlock()
				}
			}
		})
	}
	for i := range script {
		next <- i
	}
	close(next)
	wg.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return all, s.addEntries(ctx, all)
}

// hold holds one conversation. It ends with the first turn that fails.
func (s *site) hold(ctx context.Context, c conversation, done func()) []seen {
	var all []seen
	messages := slices.Clone(c.said)
	if len(messages) == 0 {
		messages = []lab.Message{{Role: "system", Content: c.system}}
	}
	for i, t := range c.turns {
		if i > 0 && !lab.Wait(ctx, t.think) {
			break
		}
		messages = append(messages, lab.Message{Role: "user", Content: t.user})
		asked := request(c.model, c.salt, slices.Clone(messages), t.answer)
		reply := s.client.Chat(ctx, asked)
		all = append(all, seen{turn: i, kind: c.kind, request: asked, reply: reply})
		done()
		if !reply.OK() {
			break
		}
		messages = append(messages, lab.Message{Role: "assistant", Content: reply.Text})
	}
	return all
}

func request(model, salt string, messages []lab.Message, tokens int) lab.ChatRequest {
	return lab.ChatRequest{Model: model, Salt: salt, Messages: messages, MaxTokens: tokens, IgnoreEOS: true}
}

// addEntries finds what Envoy logged of each request.
func (s *site) addEntries(ctx context.Context, all []seen) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, fmt.Errorf("access log %s: it lacks some of %d requests", s.accessLog, len(all)))
	defer cancel()
	for i := range all {
		if !all[i].reply.OK() {
			continue
		}
		for {
			entry, ok := s.entries[all[i].reply.RequestID]
			if ok {
				all[i].entry = entry
				break
			}
			more, err := s.log.Next()
			if err != nil {
				return err
			}
			for _, e := range more {
				s.entries[e.RequestID] = e
			}
			if len(more) == 0 && !lab.Wait(ctx, 20*time.Millisecond) {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// ask sends one plain request through Envoy, and fails unless a whole answer comes.
func (s *site) ask(ctx context.Context, messages []lab.Message) (seen, error) {
	return s.askThis(ctx, request(s.model, "", messages, 4))
}

func (s *site) askThis(ctx context.Context, r lab.ChatRequest) (seen, error) {
	one := []seen{{request: r, reply: s.client.Chat(ctx, r)}}
	if !one[0].reply.OK() {
		return one[0], broken("through Envoy", one[0].reply)
	}
	return one[0], s.addEntries(ctx, one)
}

// tell sends one request straight to an engine, so that its cache holds the prompt, and returns the prompt's tokens.
func (s *site) tell(ctx context.Context, engine string, messages []lab.Message) (int, error) {
	client := &lab.Client{URL: "http://" + engine, HTTP: s.client.HTTP}
	r := client.Chat(ctx, request(s.model, "", messages, 4))
	if !r.OK() {
		return 0, broken("straight to "+engine, r)
	}
	return r.PromptTokens, nil
}

func broken(how string, r lab.Reply) error {
	if r.Err != nil {
		return fmt.Errorf("a request %s: %w", how, r.Err)
	}
	return fmt.Errorf("a request %s: status %d: %.300s", how, r.Status, r.Body)
}
