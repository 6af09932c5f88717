package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Finding is one thing that is not as it should be, or worth knowing.
type Finding struct {
	Code     Code     `json:"code"`
	Severity Severity `json:"severity"`
	Subject  string   `json:"subject"` // what it is about, such as "engine 10.0.0.11:8000"
	Message  string   `json:"message"` // what was seen
	Advice   string   `json:"advice"`  // what to do
	Docs     string   `json:"docs"`    // where it is explained
}

// NotChecked is something that was not looked at, which is neither good nor bad.
type NotChecked struct {
	Subject string `json:"subject"`
	What    string `json:"what"`
	Why     string `json:"why"`
}

// Report is the result of one look. Its JSON is stable: fields are added, none changes its meaning within a version.
type Report struct {
	Version    int          `json:"version"` // of this form, 1
	Status     string       `json:"status"`  // the gravest severity found; "ok" without an error or a warning
	Counts     Counts       `json:"counts"`
	Findings   []Finding    `json:"findings"`    // gravest first, never null
	NotChecked []NotChecked `json:"not_checked"` // never null
	Ignored    int          `json:"ignored"`     // findings left out because their code was to be ignored
}

// Counts are the numbers of findings.
type Counts struct {
	Error   int `json:"error"`
	Warning int `json:"warning"`
	Info    int `json:"info"`
}

// Sound reports whether there is neither an error nor a warning.
func (r *Report) Sound() bool { return r.Counts.Error == 0 && r.Counts.Warning == 0 }

// collector gathers findings. Two with the same code, subject and message are one.
type collector struct {
	findings   []Finding
	notChecked []NotChecked
}

func (c *collector) found(code Code, subject, format string, args ...any) {
	e := entry(code)
	f := Finding{
		Code: code, Severity: e.Severity, Subject: subject, Message: clean(fmt.Sprintf(format, args...)), Advice: e.Advice,
		Docs: "docs/doctor.md#" + strings.ToLower(string(code)),
	}
	if !slices.Contains(c.findings, f) {
		c.findings = append(c.findings, f)
	}
}

func (c *collector) unknown(subject, what, format string, args ...any) {
	n := NotChecked{subject, what, clean(fmt.Sprintf(format, args...))}
	if !slices.Contains(c.notChecked, n) {
		c.notChecked = append(c.notChecked, n)
	}
}

// maxMessage bounds what another side's text can add to a report, in bytes.
const maxMessage = 500

// clean makes one printable line of a text that may hold what another side sent.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxMessage {
		end := maxMessage
		for !utf8.RuneStart(s[end]) {
			end--
		}
		s = s[:end] + "…"
	}
	return s
}

// report orders what was gathered.
func (c *collector) report(ignore []Code) *Report {
	r := &Report{Version: 1, Status: "ok", Findings: []Finding{}, NotChecked: []NotChecked{}}
	for _, f := range c.findings {
		if slices.Contains(ignore, f.Code) {
			r.Ignored++
			continue
		}
		r.Findings = append(r.Findings, f)
		switch f.Severity {
		case Error:
			r.Counts.Error++
		case Warning:
			r.Counts.Warning++
		default:
			r.Counts.Info++
		}
	}
	switch {
	case r.Counts.Error > 0:
		r.Status = string(Error)
	case r.Counts.Warning > 0:
		r.Status = string(Warning)
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Severity.rank(), b.Severity.rank()), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Subject, b.Subject))
	})
	r.NotChecked = append(r.NotChecked, c.notChecked...)
	slices.SortStableFunc(r.NotChecked, func(a, b NotChecked) int {
		return cmp.Or(cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.What, b.What))
	})
	return r
}

// WriteJSON writes the report as one JSON object.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// width is the longest line of a table, in characters.
const width = 100

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%-8s %s  %s\n", f.Severity, f.Code, f.Subject)
		wrap(&b, "         ", f.Message)
		wrap(&b, "         → ", f.Advice)
	}
	if len(r.NotChecked) > 0 {
		if len(r.Findings) > 0 {
			b.WriteByte('\n')
		}
		b.WriteString("not looked at:\n")
		for _, line := range grouped(r.NotChecked) {
			wrap(&b, "  ", line)
		}
	}
	if b.Len() > 0 {
		b.WriteByte('\n')
	}
	b.WriteString(r.summary())
	_, err := io.WriteString(w, b.String())
	return err
}

// grouped says once what was not looked at for the same reason at several places.
func grouped(all []NotChecked) []string {
	var lines []string
	for i, n := range all {
		same := func(o NotChecked) bool { return o.What == n.What && o.Why == n.Why }
		if slices.ContainsFunc(all[:i], same) {
			continue
		}
		more := -1
		for _, o := range all {
			if same(o) {
				more++
			}
		}
		subject := n.Subject
		if more > 0 {
			subject += fmt.Sprintf(" and %d more", more)
		}
		lines = append(lines, fmt.Sprintf("%s, %s: %s", subject, n.What, n.Why))
	}
	return lines
}

func (r *Report) summary() string {
	if len(r.Findings) == 0 && r.Ignored == 0 {
		return "nothing found\n"
	}
	line := fmt.Sprintf("%s, %s, %d info", plural(r.Counts.Error, "error"), plural(r.Counts.Warning, "warning"), r.Counts.Info)
	if r.Ignored > 0 {
		line += fmt.Sprintf(", %d ignored", r.Ignored)
	}
	if len(r.Findings) > 0 {
		line += "; codes are explained in docs/doctor.md"
	}
	return line + "\n"
}

func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// wrap writes text in lines of at most width characters, the first after lead and the others as far to the right.
func wrap(b *strings.Builder, lead, text string) {
	indent := strings.Repeat(" ", utf8.RuneCountInString(lead))
	b.WriteString(lead)
	column := len(indent)
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n > width:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	b.WriteByte('\n')
}
