package admin

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
)

// about is the first file of a bundle.
const about = `What a kvsteer %s held when this bundle was made. It has no text or token ids of requests and no content of key files; it does have
names of pools and models, addresses, and paths of files.

version.json      build of the program
config.json       configuration in use
ready.txt         what is missing for readiness, one line each
state.json        pools and endpoints, or engines
metrics.txt       metrics, in Prometheus' text format
decisions.jsonl   the latest decisions, the newest first; a node has none
goroutines.txt    what the program is doing, by place in the code
`

// build describes the running program.
type build struct {
	Version   string            `json:"version"`
	Go        string            `json:"go"`
	System    string            `json:"system"`
	Processes int               `json:"gomaxprocs"`
	Time      time.Time         `json:"time"` // of the bundle
	Settings  map[string]string `json:"settings,omitempty"`
	Modules   map[string]string `json:"modules,omitempty"`
}

func (s *Server) build() build {
	b := build{
		Version: s.o.Version, Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH, Processes: runtime.GOMAXPROCS(0),
		Time: s.o.Now().UTC(), Settings: map[string]string{}, Modules: map[string]string{},
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			b.Settings[setting.Key] = setting.Value
		}
		for _, m := range info.Deps {
			b.Modules[m.Path] = m.Version
		}
	}
	return b
}

// bundle answers with everything in one file. One is made at a time.
func (s *Server) bundle(w http.ResponseWriter, r *http.Request) {
	select {
	case s.packs <- struct{}{}:
		defer func() { <-s.packs }()
	default:
		answer(w, http.StatusServiceUnavailable, problem{Error: "another bundle is being made"})
		return
	}
	name := "kvsteer-bundle-" + s.o.Now().UTC().Format("20060102-150405")
	data, err := s.pack(name)
	if err != nil {
		s.o.Log.Warn("a bundle could not be made", "error", err)
		answer(w, http.StatusInternalServerError, problem{Error: err.Error()})
		return
	}
	s.o.Log.Info("a bundle is made", "from", r.RemoteAddr, "bytes", len(data))
	w.Header().Set("Content-Type", "application/gzip")
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name+".tar.gz"))
	_, _ = w.Write(data)
}

// pack makes the bundle, all files in a folder of its name.
func (s *Server) pack(name string) ([]byte, error) {
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	archive := tar.NewWriter(compressed)
	files := []struct {
		name string
		text func() ([]byte, error)
	}{
		{"README.txt", func() ([]byte, error) { return fmt.Appendf(nil, about, s.process()), nil }},
		{"version.json", func() ([]byte, error) { return indented(s.build()) }},
		{"config.json", s.packConfig},
		{"ready.txt", func() ([]byte, error) { return []byte(strings.Join(append(s.o.Ready(), ""), "\n")), nil }},
		{"state.json", s.packState},
		{"metrics.txt", s.packMetrics},
		{"decisions.jsonl", s.packDecisions},
		{"goroutines.txt", packGoroutines},
	}
	made := s.o.Now().Truncate(time.Second) // tar would round it up, into the future
	for _, f := range files {
		text, err := f.text()
		if err != nil {
			return nil, fmt.Errorf("bundle %s: %w", f.name, err)
		}
		header := &tar.Header{Name: name + "/" + f.name, Mode: 0o600, Size: int64(len(text)), ModTime: made}
		if err := archive.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("bundle %s: %w", f.name, err)
		}
		if _, err := archive.Write(text); err != nil {
			return nil, fmt.Errorf("bundle %s: %w", f.name, err)
		}
	}
	if err := archive.Close(); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	if err := compressed.Close(); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	return out.Bytes(), nil
}

func (s *Server) packConfig() ([]byte, error) {
	if s.o.Config == nil {
		return nil, nil
	}
	return indented(s.o.Config())
}

func (s *Server) packState() ([]byte, error) {
	if s.o.Node != nil {
		return indented(s.o.Node())
	}
	if s.o.Viewer == nil {
		return nil, nil
	}
	return indented(s.o.Viewer.State())
}

func (s *Server) packMetrics() ([]byte, error) {
	families, err := s.o.Gatherer.Gather()
	var out bytes.Buffer
	if err != nil {
		fmt.Fprintf(&out, "# %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&out, f); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

func (s *Server) packDecisions() ([]byte, error) {
	if s.o.Viewer == nil {
		return nil, nil
	}
	var out bytes.Buffer
	lines := json.NewEncoder(&out)
	for _, d := range decisions(s.o.Viewer.Recent(maxDecisions)) {
		if err := lines.Encode(d); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// packGoroutines counts goroutines by stack. Values of arguments are not in it.
func packGoroutines() ([]byte, error) {
	var out bytes.Buffer
	err := pprof.Lookup("goroutine").WriteTo(&out, 1)
	return out.Bytes(), err
}
