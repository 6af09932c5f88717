package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// Arm is what one arm showed.
type Arm struct {
	Name        string         `json:"name"`
	Requests    int            `json:"requests"`
	Errors      int            `json:"errors"`
	CachedShare float64        `json:"cached_share"` // cached prompt tokens ÷ prompt tokens, both as the engines report them
	TTFT        Latency        `json:"ttft_ms"`
	PerEndpoint map[string]int `json:"per_endpoint"` // requests that each endpoint answered, as Envoy logged them
}

// Latency summarises times to first token, in milliseconds.
type Latency struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
}

func summarise(name string, all []played, endpoints []*lab.Engine, counts map[string]int) Arm {
	arm := Arm{Name: name, Requests: len(all), PerEndpoint: map[string]int{}}
	prompt, cached := 0, 0
	var ttft []time.Duration
	for _, p := range all {
		if !p.reply.OK() {
			arm.Errors++
			continue
		}
		prompt += p.reply.PromptTokens
		cached += p.reply.CachedTokens
		ttft = append(ttft, p.reply.TTFT)
	}
	if prompt > 0 {
		arm.CachedShare = float64(cached) / float64(prompt)
	}
	arm.TTFT = latency(ttft)
	for _, e := range endpoints {
		arm.PerEndpoint[e.Address] = counts[e.Address]
	}
	return arm
}

func latency(all []time.Duration) Latency {
	if len(all) == 0 {
		return Latency{}
	}
	slices.Sort(all)
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	rank := func(percent int) float64 { return ms(all[(len(all)*percent+99)/100-1]) } // nearest rank: so many percent are no longer
	return Latency{Mean: ms(sum / time.Duration(len(all))), P50: rank(50), P90: rank(90)}
}

// table prints the arms side by side.
func table(w io.Writer, arms []Arm) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	row := func(name string, cell func(Arm) string) {
		fmt.Fprintf(t, "%s\t", name)
		for _, a := range arms {
			fmt.Fprintf(t, "%s\t", cell(a))
		}
		fmt.Fprintln(t)
	}
	row("", func(a Arm) string { return a.Name })
	row("requests", func(a Arm) string { return strconv.Itoa(a.Requests) })
	row("errors", func(a Arm) string { return strconv.Itoa(a.Errors) })
	row("prompt tokens from cache", func(a Arm) string { return fmt.Sprintf("%.1f %%", 100*a.CachedShare) })
	row("TTFT mean", func(a Arm) string { return fmt.Sprintf("%.0f ms", a.TTFT.Mean) })
	row("TTFT p50", func(a Arm) string { return fmt.Sprintf("%.0f ms", a.TTFT.P50) })
	row("TTFT p90", func(a Arm) string { return fmt.Sprintf("%.0f ms", a.TTFT.P90) })
	row("requests per replica", func(a Arm) string {
		var counts []string
		for _, address := range slices.Sorted(maps.Keys(a.PerEndpoint)) {
			counts = append(counts, strconv.Itoa(a.PerEndpoint[address]))
		}
		return strings.Join(counts, " / ")
	})
	return t.Flush()
}

// writeJSON writes the arms for programs.
func writeJSON(path string, arms []Arm) error {
	data, err := json.MarshalIndent(struct {
		Arms []Arm `json:"arms"`
	}{arms}, "", "  ")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
