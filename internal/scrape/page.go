package scrape

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Bounds of a page. One of vLLM 0.32 has 48 KiB, a rank more adds about as much.
const (
	maxPage  = 8 << 20
	maxLine  = 16 << 10 // of those that are kept
	maxKept  = 1 << 20  // bytes of lines that are kept
	maxLines = 4096     // likewise
	maxRanks = 256
)

// sample is one series of a family.
type sample struct {
	labels map[string]string
	value  float64
}

// page holds the series of the families asked for, by name.
type page map[string][]sample

// problem is an error of a page with the outcome that it is counted under. Its text holds nothing of the page.
type problem struct {
	outcome Outcome
	text    string
}

func (p *problem) Error() string { return p.text }

func problemf(o Outcome, format string, args ...any) error {
	return &problem{o, fmt.Sprintf(format, args...)}
}

// readPage reads a page in Prometheus' text format. Lines of other families are not looked at, so that they need not be well formed. Errors of
// the reader are returned as they are.
func readPage(r io.Reader, names map[string]bool) (page, error) {
	in := bufio.NewReaderSize(io.LimitReader(r, maxPage+1), maxLine)
	var kept bytes.Buffer
	var of []string // the family of each line kept
	read := 0
	for {
		line, err := in.ReadSlice('\n')
		read += len(line)
		name := familyOf(line)
		long := errors.Is(err, bufio.ErrBufferFull)
		if names[name] {
			switch {
			case long:
				return nil, problemf(OutcomeTooLarge, "a line of %s has more than %d bytes", name, maxLine)
			case len(of) == maxLines || kept.Len()+len(line) > maxKept:
				return nil, problemf(OutcomeTooLarge, "more than %d lines or %d bytes of the families asked for", maxLines, maxKept)
			}
			of = append(of, name)
			kept.Write(bytes.TrimRight(line, "\r\n"))
			kept.WriteByte('\n')
		}
		for long { // the rest of a long line
			line, err = in.ReadSlice('\n')
			read += len(line)
			long = errors.Is(err, bufio.ErrBufferFull)
		}
		switch {
		case read > maxPage:
			return nil, problemf(OutcomeTooLarge, "a page of more than %d bytes", maxPage)
		case errors.Is(err, io.EOF):
			return parse(&kept, of)
		case err != nil:
			return nil, err
		}
	}
}

// familyOf returns the name that a line of samples begins with.
func familyOf(line []byte) string {
	line = bytes.TrimLeft(line, " \t")
	if end := bytes.IndexAny(line, "{ \t"); end > 0 {
		return string(line[:end])
	}
	return ""
}

func parse(kept io.Reader, of []string) (page, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	found, err := parser.TextToMetricFamilies(kept)
	if err != nil {
		if e := (expfmt.ParseError{}); errors.As(err, &e) && e.Line >= 1 && e.Line <= len(of) {
			return nil, problemf(OutcomeMalformed, "a line of %s is not in Prometheus' text format", of[e.Line-1])
		}
		return nil, problemf(OutcomeMalformed, "not in Prometheus' text format")
	}
	p := page{}
	for name, f := range found {
		for _, m := range f.GetMetric() {
			s := sample{labels: make(map[string]string, len(m.GetLabel())), value: m.GetUntyped().GetValue()}
			for _, l := range m.GetLabel() {
				s.labels[l.GetName()] = l.GetValue()
			}
			p[name] = append(p[name], s)
		}
	}
	return p, nil
}

// name says the newest name of a family and, in brackets, the others.
func (f family) name() string {
	if len(f) == 1 {
		return f[0]
	}
	return f[0] + " (or " + strings.Join(f[1:], ", ") + ")"
}
