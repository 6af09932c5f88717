package demo

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/lab"
)

func TestProgress(t *testing.T) {
	hit := lab.Reply{Status: 200, PromptTokens: 200, CachedTokens: 100}
	miss := lab.Reply{Status: 200, PromptTokens: 100}
	refused := lab.Reply{Status: 503, PromptTokens: 1000, CachedTokens: 1000}
	for _, tt := range []struct {
		name     string
		terminal bool
		total    int
		replies  []lab.Reply
		want     string
	}{
		{"nothing yet", false, 3, nil, ""},
		{
			"every request of few", false, 3,
			[]lab.Reply{hit, refused, miss},
			"  kvsteer             1/3 requests, 0 errors, 50.0 % of prompt tokens from cache, 1 s\n" +
				"  kvsteer             2/3 requests, 1 errors, 50.0 % of prompt tokens from cache, 2 s\n" +
				"  kvsteer             3/3 requests, 1 errors, 33.3 % of prompt tokens from cache, 3 s\n",
		},
		{
			"a line per tenth of many", false, 20,
			[]lab.Reply{miss, miss, miss, miss, miss},
			"  kvsteer             2/20 requests, 0 errors, 0.0 % of prompt tokens from cache, 2 s\n" +
				"  kvsteer             4/20 requests, 0 errors, 0.0 % of prompt tokens from cache, 4 s\n",
		},
		{
			"one line on a terminal", true, 20,
			[]lab.Reply{hit, refused},
			"\r\x1b[K  kvsteer             1/20 requests, 0 errors, 50.0 % of prompt tokens from cache, 1 s" +
				"\r\x1b[K  kvsteer             2/20 requests, 1 errors, 50.0 % of prompt tokens from cache, 2 s\n",
		},
		{"only errors", false, 1, []lab.Reply{refused}, "  kvsteer             1/1 requests, 1 errors, 0.0 % of prompt tokens from cache, 1 s\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out strings.Builder
				m := progress(&out, "kvsteer", tt.total)
				m.terminal = tt.terminal
				for _, r := range tt.replies {
					<-time.After(time.Second)
					m.done(r)
				}
				m.end()
				if diff := cmp.Diff(tt.want, out.String()); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestProgressIsNoTerminal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if progress(f, "kvsteer", 1).terminal {
		t.Error("a file is taken for a terminal")
	}
}

func TestProgressCountsConcurrentRequests(t *testing.T) {
	m := progress(new(strings.Builder), "kvsteer", 100)
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() { m.done(lab.Reply{Status: 200, PromptTokens: 2, CachedTokens: 1}) })
	}
	wg.Wait()
	if m.sent != 100 || m.errors != 0 || m.prompt != 200 || m.cached != 100 {
		t.Errorf("%d sent, %d errors, %d of %d tokens cached", m.sent, m.errors, m.cached, m.prompt)
	}
}
