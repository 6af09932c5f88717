package pool

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadModels(t *testing.T) {
	recorded, err := os.ReadFile("testdata/models.json")
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", maxServed+1)
	many := strings.Repeat(`{"id":"a"},`, maxListed) + `{"id":"last"}`
	tests := []struct {
		name, body string
		want       []card
		err        error
	}{
		{"recorded", string(recorded), []card{
			{id: "tiny", root: "MODEL_DIR", modelLen: 2048}, {id: "adapter-a", root: "MODEL_DIR/lora/adapter-a", parent: "tiny", adapts: true},
		}, nil},
		{"no model", `{"data":[]}`, nil, nil},
		{"no parents", `{"object":"list","data":[{"id":"q","root":"q","max_model_len":-1}]}`, []card{{id: "q", root: "q"}}, nil},
		{"a length of thirty digits", `{"data":[{"id":"q","max_model_len":100000000000000000000000000000}]}`, []card{{id: "q"}}, nil},
		{"data twice", `{"data":[{"id":"a"}],"data":[{"id":"b"}]}`, []card{{id: "b"}}, nil},
		{"fields before and behind", `{"x":{"data":[{"id":"no"}]},"data":[{"id":"a"}],"y":[1]}`, []card{{id: "a"}}, nil},
		{"no objects", `{"data":[1,"a",null,[{"id":"b"}],{"id":"c"}]}`, []card{{id: "c"}}, nil},
		{"names of other types", `{"data":[{"id":1},{"id":null},{},{"id":["a"]},{"id":"b","root":7}]}`, []card{{id: "b"}}, nil},
		{"unusable names", `{"data":[{"id":""},{"id":"a\nb"},{"id":"` + long + `"},{"id":"c"}]}`, []card{{id: "c"}}, nil},
		{"unusable parents", `{"data":[{"id":"a","parent":1},{"id":"b","parent":""},{"id":"c","parent":{}},{"id":"d","parent":null}]}`, []card{{id: "d"}}, nil},
		{"overlong root", `{"data":[{"id":"a","root":"` + strings.Repeat("r", maxPath+1) + `"}]}`, []card{{id: "a"}}, nil},
		{"empty", "", nil, errManyBytes},
		{"broken off", `{"data":[{"id":"a"}`, nil, errManyBytes},
		{"not JSON", `<html>`, nil, errNoModels},
		{"a list", `[{"id":"a"}]`, nil, errNoModels},
		{"no data", `{"object":"list"}`, nil, errNoModels},
		{"data of another type", `{"data":{"id":"a"}}`, nil, errNoModels},
		{"an element broken", `{"data":[{"id":"a"},{"id":]}`, nil, errNoModels},
		{"deep", `{"data":[` + strings.Repeat("[", 20_000) + `]}`, nil, errNoModels},
		{"deep beside", `{"x":` + strings.Repeat(`{"x":`, 20_000) + `}`, nil, errNoModels},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := readModels(strings.NewReader(tt.body))
			if !errors.Is(err, tt.err) {
				t.Errorf("error %v, want %v", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(card{})); diff != "" {
				t.Errorf("models, -want +got:\n%s", diff)
			}
		})
	}
	if got, err := readModels(strings.NewReader(`{"data":[` + many + `]}`)); err != nil || len(got) != maxListed || got[len(got)-1].id != "a" {
		t.Errorf("%d of many models, %v", len(got), err)
	}
}

func FuzzReadModels(f *testing.F) {
	f.Add(`{"data":[{"id":"a","parent":"b","root":"r","max_model_len":5}]}`)
	f.Add(`{"data":[1,{"id":"a"}],"data":null}`)
	f.Fuzz(func(t *testing.T, body string) {
		cards, err := readModels(strings.NewReader(body))
		if err != nil && cards != nil {
			t.Error("models beside an error")
		}
		for _, c := range cards {
			if !servedName(c.id) || len(c.root) > maxPath || c.modelLen < 0 || c.adapts != (c.parent != "") {
				t.Errorf("unusable card %+v", c)
			}
		}
		l := newListing(1, cards)
		for _, c := range l.cards {
			if got, ok := l.card(c.id); !ok || got != c {
				t.Errorf("%q is not found", c.id)
			}
		}
	})
}

func TestTell(t *testing.T) {
	list := func(cards ...card) *listing { return newListing(0, cards) }
	base := card{id: "llama", root: "dir", modelLen: 4096}
	lora := func(id, parent string) card { return card{id: id, parent: parent, root: "lora/" + id, adapts: true} }
	tests := []struct {
		name     string
		listings []*listing
		adapters []string
		paths    map[string]string
		modelLen int
		ignored  []string
	}{
		{name: "nothing told"},
		{name: "an adapter", listings: []*listing{list(base, lora("a", "llama"))}, adapters: []string{"a"}, paths: map[string]string{"a": "lora/a"}, modelLen: 4096},
		{
			name: "one on two endpoints", listings: []*listing{list(base, lora("a", "llama")), list(base, card{id: "a", parent: "llama", root: "other", adapts: true})},
			adapters: []string{"a"}, paths: map[string]string{"a": "lora/a"}, modelLen: 4096,
		},
		{name: "of another base", listings: []*listing{list(base, lora("a", "qwen"))}, modelLen: 4096},
		{
			name: "of another name of the same weights", listings: []*listing{list(base, card{id: "alias", root: "dir"}, lora("a", "alias"))},
			adapters: []string{"a"}, paths: map[string]string{"a": "lora/a"}, modelLen: 4096,
		},
		{name: "of other weights", listings: []*listing{list(base, card{id: "alias", root: "elsewhere"}, lora("a", "alias"))}, modelLen: 4096, ignored: []string{"alias"}},
		{name: "of an adapter", listings: []*listing{list(base, lora("a", "llama"), lora("b", "a"))}, adapters: []string{"a"}, paths: map[string]string{"a": "lora/a"}, modelLen: 4096},
		{name: "named as the base", listings: []*listing{list(lora("llama", "llama"))}},
		{name: "no roots", listings: []*listing{list(card{id: "llama"}, card{id: "b"}, lora("a", "b"))}, ignored: []string{"b"}},
		{name: "the longest", listings: []*listing{list(base), list(card{id: "llama", modelLen: 8192})}, modelLen: 8192},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := told{adapters: map[string]bool{}, paths: map[string]string{}, modelLen: tt.modelLen, ignored: tt.ignored}
			for _, a := range tt.adapters {
				want.adapters[a], want.paths[a] = true, tt.paths[a]
			}
			if diff := cmp.Diff(want, tell([]string{"llama"}, tt.listings), cmp.AllowUnexported(told{})); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	var crowd []card
	for i := range maxAdapters + 1 {
		crowd = append(crowd, lora(fmt.Sprintf("%06d", i), "llama"))
	}
	if got := tell([]string{"llama"}, []*listing{list(crowd...), list(lora("000000", "llama"))}); len(got.adapters) != maxAdapters || !got.crowded {
		t.Errorf("%d adapters, crowded %v", len(got.adapters), got.crowded)
	}
}
