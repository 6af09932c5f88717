package openai

import "testing"

type discard struct{ n int }

func (d *discard) Head(p []byte)  { d.n += len(p) }
func (d *discard) Text(p []byte)  { d.n += len(p) }
func (d *discard) Media(p []byte) { d.n += len(p) }
func (d *discard) Opened()        {}

func BenchmarkWriteText(b *testing.B) {
	r := Parse(post(chats), chatBody(197<<10), Limits{})
	var d discard
	buf := make([]byte, 2048)
	b.ReportAllocs()
	for b.Loop() {
		r.WriteText(&d, buf)
	}
}
