package tokenize

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
)

// API says which of an engine's APIs is asked; one of a closed set.
type API string

// The APIs.
const (
	APITokenize API = "tokenize" // POST /tokenize
	APIRender   API = "render"   // POST /v1/completions/render or /v1/chat/completions/render
)

// job is what may be asked for one prompt.
type job struct {
	render    bool   // the render endpoint is asked first
	tokenize  []byte // body of /tokenize, nil when it cannot tell
	key       key    // of what /tokenize answers
	renderKey key    // of what the render endpoint answers; the same where the answers cannot differ
}

// first is the key of the answer that is wanted most.
func (j *job) first() key {
	if j.render {
		return j.renderKey
	}
	return j.key
}

// separate is put before what a key is computed over for answers that /tokenize would not give. No pool's name is that long.
const separate = "\xff\xff\xff\xff\xff\xff\xff\xffrender"

// renders says whether the render endpoint is to be asked for a call.
func (t *Tokenizer) renders(c *Call) bool {
	path := c.Request.RenderPath()
	return t.o.Render && path != "" && c.Request.RenderSize(c.Model) <= t.o.MaxTokens*promptToken && !t.absences.has(c, path)
}

// maxAbsences bounds the endpoints that are remembered; beyond it all are forgotten.
const maxAbsences = 1 << 16

// absences remember which endpoints do not offer a render endpoint: for as long as their engine is the same, and is asked with the same key.
type absences struct {
	mu    sync.Mutex
	known map[place]standing
}

type place struct{ endpoint, path string }

// standing is what an absence holds for.
type standing struct {
	life    uint64
	version string
	key     string
}

func (a *absences) has(c *Call, path string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, ok := a.known[place{c.Endpoint, path}]
	return ok && s == standing{c.Life, c.Version, c.APIKey}
}

func (a *absences) note(c *Call, path string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known == nil || len(a.known) >= maxAbsences {
		a.known = map[place]standing{}
	}
	a.known[place{c.Endpoint, path}] = standing{c.Life, c.Version, c.APIKey}
}

// absent says by an answer that the endpoint does not offer the API: vLLM up to 0.30 has no such path then, 0.32 forbids it, and an answer in
// another form is an older release's. One of its web servers' answers, 401, says that a key is wanted, which /tokenize does not want. A 404 can also
// be about the model.
func absent(a answer) bool {
	switch a.status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return true
	case http.StatusNotFound:
		return !a.noModel
	}
	return a.outcome == BadReply && a.whole
}

// aboutModel reports whether a 404 says that there is no such model.
func aboutModel(body []byte) bool {
	var reply struct {
		Error struct {
			Type    string  `json:"type"`
			Param   *string `json:"param"`
			Message string  `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &reply) != nil {
		return false
	}
	e := reply.Error
	return e.Param != nil && *e.Param == "model" || e.Type == "NotFoundError" && strings.Contains(e.Message, "does not exist")
}
