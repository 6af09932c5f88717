package approx

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/openai"
)

func parse(body string) openai.Request {
	path := "/v1/chat/completions"
	if strings.Contains(body, `"prompt"`) {
		path = "/v1/completions"
	}
	return openai.Parse(openai.Meta{Method: "POST", Path: path}, []byte(body), openai.Limits{})
}

func key(t testing.TB, k *Keyer, pool, adapter, body string, max int) []uint64 {
	t.Helper()
	r := parse(body)
	if !k.Key(pool, adapter, &r, max) {
		t.Fatalf("no text in %.100q: %q", body, r.Reason)
	}
	return slices.Clone(k.Keys)
}

func common(a, b []uint64) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func user(n int) string { return `{"role":"user","content":"` + strings.Repeat("word ", n/5) + `"}` }

func chat(fields, messages string) string {
	return `{"model":"m",` + fields + `"messages":[` + messages + `]}`
}

// What two prompts share is what their texts share, in whole blocks, and nothing when anything before the text differs.
func TestKeysShared(t *testing.T) {
	long := user(10 * BlockBytes)
	tests := []struct {
		name           string
		a, b           string
		poolB, adaptrB string
		want           int
	}{
		{name: "the same", a: chat("", long), b: chat("", long), want: 10},
		{name: "follow-up", a: chat("", long), b: chat("", long+","+long), want: 10},
		{name: "first message shared", a: chat("", long+","+user(600)), b: chat("", long+`,{"role":"user","content":"another"}`), want: 10},
		{name: "pool", a: chat("", long), b: chat("", long), poolB: "code", want: 0},
		{name: "adapter", a: chat("", long), b: chat("", long), adaptrB: "sql", want: 0},
		{name: "salt", a: chat("", long), b: chat(`"cache_salt":"s",`, long), want: 0},
		{name: "tools", a: chat("", long), b: chat(`"tools":[1],`, long), want: 0},
		{name: "long tools that differ at their end", a: chat(`"tools":["`+strings.Repeat("a", 5000)+`"],`, long), b: chat(`"tools":["`+strings.Repeat("a", 5000)+`b"],`, long), want: 0},
		{name: "long tools, the same", a: chat(`"tools":["`+strings.Repeat("a", 5000)+`"],`, long), b: chat(`"tools":[ "`+strings.Repeat("a", 5000)+`"],`, long), want: 10},
		{name: "shorter than a block", a: chat("", user(100)), b: chat("", user(100)), want: 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var k Keyer
			pool := "chat"
			a := key(t, &k, pool, "", tt.a, 1000)
			if tt.poolB != "" {
				pool = tt.poolB
			}
			b := key(t, &k, pool, tt.adaptrB, tt.b, 1000)
			if got := common(a, b); got != tt.want {
				t.Errorf("%d blocks of %d and %d are shared, want %d", got, len(a), len(b), tt.want)
			}
		})
	}
}

func TestKeysAreBounded(t *testing.T) {
	var k Keyer
	all := key(t, &k, "chat", "", chat("", user(20*BlockBytes)), 1000)
	total := k.Bytes
	some := key(t, &k, "chat", "", chat("", user(20*BlockBytes)), 7)
	if len(all) != 20 || !slices.Equal(some, all[:7]) || k.Bytes != total {
		t.Errorf("%d keys of %d, %d bytes of %d", len(some), len(all), k.Bytes, total)
	}
}

// An engine computes at least the last token: a prompt that fills its blocks exactly can reuse all but the last of them.
func TestReusable(t *testing.T) {
	var k Keyer
	for _, tt := range []struct{ tokens, keys, reusable int }{{63, 0, 0}, {64, 1, 0}, {65, 1, 1}, {128, 2, 1}, {129, 2, 2}} {
		body := `{"model":"m","prompt":[` + strings.Repeat("7,", tt.tokens-1) + `7]}`
		key(t, &k, "chat", "", body, 1000)
		if len(k.Keys) != tt.keys || k.Reusable() != tt.reusable || k.Bytes-k.head != 4*tt.tokens {
			t.Errorf("%d tokens: %d keys, %d of them reusable, %d bytes", tt.tokens, len(k.Keys), k.Reusable(), k.Bytes-k.head)
		}
	}
}

// Tools count as held once the first message is.
func TestCovered(t *testing.T) {
	var k Keyer
	key(t, &k, "chat", "", chat(`"tools":["`+strings.Repeat("a", 5000)+`"],`, user(4*BlockBytes-100)+","+user(1000)), 1000)
	if k.head < 5000 || k.opened == 0 {
		t.Fatalf("head %d, first message %d", k.head, k.opened)
	}
	for blocks, want := range []int{0, 256, 512, 768, 1024 + k.head} {
		if got := k.Covered(blocks); got != want {
			t.Errorf("%d blocks cover %d bytes, want %d", blocks, got, want)
		}
	}
}

// A part that is not text extends the key by a fixed room, the same for the same part, whatever its size.
func TestMedia(t *testing.T) {
	image := func(seed byte) string {
		data := base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string(rune(seed)), 100_000)))
		return `{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"data:image/png;base64,` + data + `"}}]}`
	}
	var k Keyer
	one := key(t, &k, "chat", "", chat("", image('a')), 1000)
	if len(one) != mediaBytes/BlockBytes {
		t.Errorf("an image makes %d blocks, want %d", len(one), mediaBytes/BlockBytes)
	}
	followUp := key(t, &k, "chat", "", chat("", image('a')+","+user(2000)), 1000)
	if got := common(one, followUp); got != len(one) {
		t.Errorf("a follow-up shares %d of %d blocks", got, len(one))
	}
	if got := common(one, key(t, &k, "chat", "", chat("", image('b')), 1000)); got != 0 {
		t.Errorf("another image shares %d blocks", got)
	}
}

func TestNothingToKey(t *testing.T) {
	var k Keyer
	key(t, &k, "chat", "", chat("", user(1000)), 1000)
	r := parse(`{"model":"m","prompt":[1,-1]}`)
	if k.Key("chat", "", &r, 1000) || len(k.Keys) != 0 {
		t.Errorf("%d keys of a prompt without text", len(k.Keys))
	}
}

// body is a chat of about size bytes, in paragraphs.
func body(size int) string {
	var b strings.Builder
	b.WriteString(`{"model":"m","messages":[{"role":"system","content":"You answer in one line."}`)
	for turn := 0; b.Len() < size; turn++ {
		fmt.Fprintf(&b, `,{"role":%q,"content":"`, []string{"user", "assistant"}[turn%2])
		for i := range 12 {
			fmt.Fprintf(&b, `Paragraph %d of turn %d says that the naïve \"plan\" of %d units — in stock — holds.\n`, i, turn, i*turn)
		}
		b.WriteString(`"}`)
	}
	b.WriteString(`]}`)
	return b.String()
}

// BenchmarkKey is the keys of a chat's text beside what reading its body takes; both alternate, so that their ratio holds on a noisy machine.
func BenchmarkKey(b *testing.B) {
	for _, size := range []int{8 << 10, 32 << 10, 197 << 10} {
		text := []byte(body(size))
		meta := openai.Meta{Method: "POST", Path: "/v1/chat/completions"}
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			var k Keyer
			var parsing, keying time.Duration
			b.ReportAllocs()
			for b.Loop() {
				start := time.Now()
				r := openai.Parse(meta, text, openai.Limits{})
				middle := time.Now()
				k.Key("chat", "", &r, 1<<20)
				parsing += middle.Sub(start)
				keying += time.Since(middle)
			}
			b.ReportMetric(float64(keying.Nanoseconds())/float64(b.N), "key-ns/op")
			b.ReportMetric(keying.Seconds()/parsing.Seconds(), "key/parse")
		})
	}
}
