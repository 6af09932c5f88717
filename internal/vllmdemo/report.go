package vllmdemo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// Report is what a run showed.
type Report struct {
	Traffic  Figures `json:"traffic"`
	Cut      Figures `json:"cut"`      // while connections were cut
	Healed   Figures `json:"healed"`   // of one turn of each conversation after the router had started without replay, and had seen one before
	Node     Figures `json:"node"`     // while a node follows the engines
	Eviction Figures `json:"eviction"` // of the traffic with an engine of few blocks
	Unpinned Figures `json:"unpinned"` // with an engine that chooses among its ranks
	Pinned   Figures `json:"pinned"`   // with a router that does
	Seconds  float64 `json:"seconds"`
	Checks   []Check `json:"checks"`
}

func (r *Report) add(checks ...Check) { r.Checks = append(r.Checks, checks...) }

// failed lists the checks that are not so.
func (r Report) failed() []Check {
	var failed []Check
	for _, c := range r.Checks {
		if !c.OK {
			failed = append(failed, c)
		}
	}
	return failed
}

// table prints all checks for people.
func table(w io.Writer, r Report) error {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	part := ""
	for _, c := range r.Checks {
		if c.Part != part {
			fmt.Fprintf(t, "%s\t\t\n", c.Part)
			part = c.Part
		}
		verdict := "ok"
		switch {
		case !c.OK:
			verdict = "FAILED, want " + c.Want
		case c.Want == "":
			verdict = ""
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\n", c.What, c.Got, verdict)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(b.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// counts prints a map of counts in the order of its keys.
func counts(m map[string]int) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(all, ", ")
}

func writeJSON(path string, r Report) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
