package lab

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// MetricsPage is a page of metrics as it was at one time.
type MetricsPage struct {
	url  string
	text string
}

// ReadMetrics reads a page of metrics: the router's, an engine's, Envoy's /stats/prometheus.
func ReadMetrics(ctx context.Context, url string) (MetricsPage, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return MetricsPage{}, err
	}
	resp, err := probe.Do(req)
	if err != nil {
		return MetricsPage{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return MetricsPage{}, fmt.Errorf("read %s: status %d", url, resp.StatusCode)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return MetricsPage{}, fmt.Errorf("read %s: %w", url, err)
	}
	return MetricsPage{url: url, text: string(text)}, nil
}

// Sum returns the sum of the series of one name that have all the labels, each written as name="value". That there is none is
// an error.
func (p MetricsPage) Sum(name string, labels ...string) (float64, error) {
	sum, found := 0.0, 0
	for line := range strings.Lines(p.text) {
		series, value, _ := strings.Cut(line, " ")
		if i := strings.LastIndexByte(line, '}'); i >= 0 { // a label may hold spaces
			series, value = line[:i], line[i+1:]
		}
		if have, list, _ := strings.Cut(series, "{"); have != name || !hasAll(list, labels) {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %q: %w", p.url, line, err)
		}
		sum += v
		found++
	}
	if found == 0 {
		return 0, fmt.Errorf("read %s: no series %s with %q", p.url, name, labels)
	}
	return sum, nil
}

// Metric reads a page for one sum of it.
func Metric(ctx context.Context, url, name string, labels ...string) (float64, error) {
	page, err := ReadMetrics(ctx, url)
	if err != nil {
		return 0, err
	}
	return page.Sum(name, labels...)
}

func hasAll(list string, labels []string) bool {
	for _, l := range labels {
		if !strings.Contains(list, l) {
			return false
		}
	}
	return true
}
