package openai

// Meta is what the parser reads of a request besides its body.
type Meta struct {
	Method          string // :method
	Path            string // :path, with its query
	ContentType     string // content-type, "" when absent
	ContentEncoding string // content-encoding, "" when absent
}
