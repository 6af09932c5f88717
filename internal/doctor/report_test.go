package doctor

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func example() *Report {
	var c collector
	c.found(EventsOpen, "engine 10.0.0.11:8000", "the router dials 10.0.0.11:5557, which other hosts may reach too; the engine binds tcp://*:5557")
	c.found(PrefixCachingOff, "engine 10.0.0.12:8000", "prefix caching is off")
	c.found(PrefixCachingOff, "engine 10.0.0.12:8000", "prefix caching is off")
	c.found(DetailsOff, "engine 10.0.0.12:8000", "usage.prompt_tokens_details of an answer is empty")
	c.found(RouterPanics, "router", "1 panics")
	c.unknown("engine 10.0.0.12:8000", "release", "the engine does not tell it")
	c.unknown("engine 10.0.0.11:8000", "release", "the engine does not tell it")
	return c.report([]Code{RouterPanics})
}

func TestTable(t *testing.T) {
	const want = `error    KV204  engine 10.0.0.12:8000
         prefix caching is off
         → start the engine with prefix caching
warning  KV304  engine 10.0.0.11:8000
         the router dials 10.0.0.11:5557, which other hosts may reach too; the engine binds
         tcp://*:5557
         → close the port to all but the router, or use events.listen on one host
info     KV210  engine 10.0.0.12:8000
         usage.prompt_tokens_details of an answer is empty
         → start the engine with --enable-prompt-tokens-details

not looked at:
  engine 10.0.0.11:8000 and 1 more, release: the engine does not tell it

1 error, 1 warning, 1 info, 1 ignored; codes are explained in docs/doctor.md
`
	var got bytes.Buffer
	if err := example().WriteTable(&got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got.Reset()
	if err := new(collector).report(nil).WriteTable(&got); err != nil || got.String() != "nothing found\n" {
		t.Errorf("an empty report: %q, %v", &got, err)
	}
}

// TestJSON holds the form of the report, which others read.
func TestJSON(t *testing.T) {
	for _, tt := range []struct {
		name   string
		report *Report
		want   string
	}{
		{"empty", new(collector).report(nil), `{"version":1,"status":"ok","counts":{"error":0,"warning":0,"info":0},"findings":[],"not_checked":[],"ignored":0}`},
		{"all", example(), `{"version":1,"status":"error","counts":{"error":1,"warning":1,"info":1},"findings":[
			{"code":"KV204","severity":"error","subject":"engine 10.0.0.12:8000","message":"prefix caching is off",
			 "advice":"start the engine with prefix caching","docs":"docs/doctor.md#kv204"},
			{"code":"KV304","severity":"warning","subject":"engine 10.0.0.11:8000",
			 "message":"the router dials 10.0.0.11:5557, which other hosts may reach too; the engine binds tcp://*:5557",
			 "advice":"close the port to all but the router, or use events.listen on one host","docs":"docs/doctor.md#kv304"},
			{"code":"KV210","severity":"info","subject":"engine 10.0.0.12:8000","message":"usage.prompt_tokens_details of an answer is empty",
			 "advice":"start the engine with --enable-prompt-tokens-details","docs":"docs/doctor.md#kv210"}],
			"not_checked":[{"subject":"engine 10.0.0.11:8000","what":"release","why":"the engine does not tell it"},
			{"subject":"engine 10.0.0.12:8000","what":"release","why":"the engine does not tell it"}],"ignored":1}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var text bytes.Buffer
			if err := tt.report.WriteJSON(&text); err != nil {
				t.Fatal(err)
			}
			var got, want any
			if err := json.Unmarshal(text.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(tt.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestDocumentedForm holds that the report shown in docs/doctor.md has the form of a real one.
func TestDocumentedForm(t *testing.T) {
	doc, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "```json\n")
	shown, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("no JSON block")
	}
	var r Report
	d := json.NewDecoder(strings.NewReader(shown))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		t.Fatal(err)
	}
	var c collector
	for _, f := range r.Findings {
		c.found(f.Code, f.Subject, "%s", f.Message)
	}
	c.notChecked = r.NotChecked
	if diff := cmp.Diff(c.report(nil), &r); diff != "" {
		t.Errorf("(-code +document):\n%s", diff)
	}
}
