package main

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

func parseEngine(t *testing.T, args ...string) (*engineCmd, error) {
	t.Helper()
	var c struct {
		Engine engineCmd `cmd:""`
	}
	k, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	_, err = k.Parse(append([]string{"engine"}, args...))
	return &c.Engine, err
}

// TestEngineBanner wants the first line of output to name the addresses that were bound, and the engine to serve there.
func TestEngineBanner(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no events": {nil, `^engine: serving tiny on (http://127\.0\.0\.1:\d+)$`},
		"connect": {
			[]string{"--model=m", "--model=n", "--events-connect=tcp://127.0.0.1:1"},
			`^engine: serving m on (http://127\.0\.0\.1:\d+), events connect tcp://127\.0\.0\.1:1$`,
		},
		"bind": {[]string{"--events-bind=tcp://127.0.0.1:0"}, `^engine: serving tiny on (http://127\.0\.0\.1:\d+), events bind tcp://127\.0\.0\.1:[1-9]\d*$`},
		"replay": {
			[]string{"--events-bind=tcp://127.0.0.1:0", "--replay-bind=tcp://127.0.0.1:0", "--ranks=3", "--hash-algo=sha256"},
			`^engine: serving tiny on (http://127\.0\.0\.1:\d+), events bind tcp://127\.0\.0\.1:[1-9]\d*, replay bind tcp://127\.0\.0\.1:[1-9]\d*$`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			cmd, err := parseEngine(t, append(tc.args, "--listen=127.0.0.1:0")...)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			r, w := io.Pipe()
			done := make(chan error, 1)
			go func() { done <- cmd.Run(ctx, w, slog.New(slog.DiscardHandler)) }()
			line, err := bufio.NewReader(r).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			m := regexp.MustCompile(tc.want).FindStringSubmatch(strings.TrimSuffix(line, "\n"))
			if m == nil {
				t.Fatalf("printed %q, want %s", line, tc.want)
			}
			resp, err := http.Get(m[1] + "/health")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestEngineFlags(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"both directions": {[]string{"--events-bind=tcp://*:1", "--events-connect=tcp://a:1"}, "can't be used together"},
		"format":          {[]string{"--events-format=x"}, "--events-format must be one of"},
		"block size":      {[]string{"--block-size=-1"}, "block size -1"},
		"two problems":    {[]string{"--blocks=1", "--prefill-rate=-1"}, "no negative values"},
		"no ranks":        {[]string{"--ranks=0"}, "--ranks: 0 is too few"},
		"no buffer":       {[]string{"--buffer-steps=0"}, "--buffer-steps: 0 is too few"},
		"hash algorithm":  {[]string{"--hash-algo=xxhash"}, "--hash-algo must be one of"},
		"replay alone":    {[]string{"--replay-bind=tcp://*:1"}, "nothing to replay"},
		"listen":          {[]string{"--listen=127.0.0.1:notaport"}, "listen tcp"},
		"empty key":       {[]string{"--api-key-file=" + empty}, "is empty"},
		"no key":          {[]string{"--api-key-file=/does/not/exist"}, "read API key"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd, err := parseEngine(t, tc.args...)
			if err == nil {
				err = cmd.Run(context.Background(), io.Discard, slog.New(slog.DiscardHandler))
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
