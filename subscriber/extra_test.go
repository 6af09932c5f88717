package subscriber

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

func TestExtraKeys(t *testing.T) {
	item := func(id string, offset int64) []byte { return blockhash.AppendItem(nil, id, offset) }
	type block struct {
		Extra []byte
		Salt  string
		OK    bool
	}
	plain := block{OK: true}
	bad := block{}
	for _, c := range []struct {
		name  string
		lora  string
		first bool
		extra any
		want  []block
	}{
		{"plain", "", true, []any{nil, nil}, []block{plain, plain}},
		{"empty", "", true, []any{[]any{}}, []block{plain}},
		{"salt", "", true, []any{[]any{"tenant"}, nil}, []block{{Salt: "tenant", OK: true}, plain}},
		{"adapter", "a", true, []any{[]any{"a"}, []any{"a"}}, []block{plain, plain}},
		{"adapter and salt", "a", true, []any{[]any{"a", "tenant"}, []any{"a"}}, []block{{Salt: "tenant", OK: true}, plain}},
		{"adapter and salt of one name", "a", true, []any{[]any{"a", "a"}}, []block{{Salt: "a", OK: true}}},
		{"salt where the adapter is missing", "a", true, []any{[]any{"tenant"}}, []block{{Salt: "tenant", OK: true}}},
		{"items", "", false, []any{[]any{[]any{"aaaa", -3}, []any{"bbbb", 2}}}, []block{{Extra: append(item("aaaa", -3), item("bbbb", 2)...), OK: true}}},
		{
			"everything", "a", true,
			[]any{[]any{"a", []any{"aaaa", 1}, "tenant", []byte{1, 2}}},
			[]block{{Extra: blockhash.AppendDigest(item("aaaa", 1), []byte{1, 2}), Salt: "tenant", OK: true}},
		},
		{"digest", "", false, []any{[]any{[]byte{1, 2}}}, []block{{Extra: blockhash.AppendDigest(nil, []byte{1, 2}), OK: true}}},

		{"bare identifier", "", false, []any{[]any{"aaaa"}, nil}, []block{bad, plain}},
		{"salt in a later block", "", true, []any{nil, []any{"tenant"}}, []block{plain, bad}},
		{"bare identifier before the salt", "", true, []any{[]any{"aaaa", "tenant"}, nil}, []block{bad, plain}},
		{"other adapter", "b", false, []any{[]any{"a"}}, []block{bad}},
		{"empty salt", "", true, []any{[]any{""}}, []block{bad}},
		{"item after the salt", "", true, []any{[]any{"tenant", []any{"aaaa", 1}}}, []block{bad}},
		{"tagged item", "", false, []any{[]any{[]any{"mm", "aaaa", 1}}, nil}, []block{bad, plain}},
		{"item without offset", "", false, []any{[]any{[]any{"aaaa"}}, nil}, []block{bad, plain}},
		{"item with a text offset", "", false, []any{[]any{[]any{"aaaa", "1"}}, nil}, []block{bad, plain}},
		{"item with a number as identifier", "", false, []any{[]any{[]any{1, 1}}, nil}, []block{bad, plain}},
		{"number", "", false, []any{[]any{5}, nil}, []block{bad, plain}},
		{"map", "", false, []any{fields{{"a", 1}}, nil}, []block{bad, plain}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newExtraKeys()
			if !x.begin(pack(c.extra), len(c.want)) {
				t.Fatal("not one entry per block")
			}
			var got []block
			for i := range c.want {
				extra, salt, ok := x.next(nil, []byte(c.lora), c.first && i == 0)
				got = append(got, block{extra, string(salt), ok})
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if _, _, ok := x.next(nil, nil, false); ok {
				t.Error("one entry more than there are blocks")
			}
		})
	}
	for name, value := range map[string]any{"too few": []any{nil}, "too many": []any{nil, nil, nil}, "no array": "x"} {
		if newExtraKeys().begin(pack(value), 2) {
			t.Errorf("%s: accepted", name)
		}
	}
}
