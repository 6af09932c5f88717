package lab

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Metric reads the series of one name from a page of metrics (the router's, an engine's, Envoy's /stats/prometheus) and returns
// the sum of those that have all the labels, each written as name="value". That there is none is an error.
func Metric(ctx context.Context, url, name string, labels ...string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := probe.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("read %s: status %d", url, resp.StatusCode)
	}
	sum, found := 0.0, 0
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		series, value, _ := strings.Cut(lines.Text(), " ")
		if i := strings.LastIndexByte(lines.Text(), '}'); i >= 0 { // a label may hold spaces
			series, value = lines.Text()[:i], lines.Text()[i+1:]
		}
		if have, list, _ := strings.Cut(series, "{"); have != name || !hasAll(list, labels) {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %q: %w", url, lines.Text(), err)
		}
		sum += v
		found++
	}
	if err := lines.Err(); err != nil {
		return 0, fmt.Errorf("read %s: %w", url, err)
	}
	if found == 0 {
		return 0, fmt.Errorf("read %s: no series %s with %q", url, name, labels)
	}
	return sum, nil
}

func hasAll(list string, labels []string) bool {
	for _, l := range labels {
		if !strings.Contains(list, l) {
			return false
		}
	}
	return true
}
