package envoy

import (
	"bytes"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Render gives a complete Envoy bootstrap in YAML, with comments. Equal options give equal bytes. An error joins everything that is
// wrong with the options, as Validate does.
func Render(o Options) ([]byte, error) {
	b, err := newBuilder(o, whole)
	if err != nil {
		return nil, err
	}
	boot := b.bootstrap()
	if b.err != nil {
		return nil, fmt.Errorf("pack extension config: %w", b.err)
	}
	root, err := tree(boot)
	if err != nil {
		return nil, err
	}
	root.arrange(first(), last())
	return b.document(root), nil
}

// tree gives a message as YAML values.
func tree(m proto.Message) (*node, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("marshal %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	root, err := parseJSON(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return root, nil
}

// document writes values with their comments.
func (b *builder) document(root *node) []byte {
	root.annotate(b.notes())
	root.walk(nil, tidy)
	var out bytes.Buffer
	for _, line := range b.header() {
		out.WriteString("# " + line + "\n")
	}
	if b.scope == whole {
		out.Write(root.yaml())
		return out.Bytes()
	}
	for _, e := range root.entries {
		out.WriteString("\n")
		out.Write((&node{kind: mapping, entries: []entry{e}}).yaml())
	}
	return out.Bytes()
}

// tidy undoes two habits of protojson: 64-bit integers are strings, and a value that is the default is left out, which leaves an
// empty percentage where zero is meant.
func tidy(path []string, v *node) {
	switch path[len(path)-1] {
	case "request_body_buffer_limit", "host_selection_retry_max_attempts":
		v.text = strings.Trim(v.text, `"`)
	case "healthy_panic_threshold":
		if len(v.entries) == 0 {
			v.entries = []entry{{"value", &node{text: "0"}}}
		}
	}
}

// header explains the file.
func (b *builder) header() []string {
	release := "1.40 or newer"
	why := "one route per pool leads to a composite cluster that passes over members without a host."
	if b.layout == LayoutCompat {
		release = "1.37 or newer"
		why = "a route for requests with a decision, then one for those without. With Envoy 1.40 or newer the layout " +
			"composite also retries at the router's second choice (kvsteer envoy --envoy-version 1.40)."
	}
	if b.layout == LayoutOverride {
		release = "1.37 or newer"
		why = "each pool is one cluster, which tries the endpoints of the router's list in turn."
	}
	if b.scope == filterOnly {
		return wrap(b.filterHeader(release), noteWidth)
	}
	text := fmt.Sprintf("Envoy configuration for kvsteer, written by `kvsteer envoy`. For Envoy %s; layout %s: %s", release, b.layout, why)
	return wrap(text+"\nCheck: envoy --mode validate -c FILE. Run: envoy -c FILE.", noteWidth)
}
