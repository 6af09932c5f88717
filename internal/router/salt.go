package router

import (
	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/internal/pool"
)

// takeSalt has the pool's salt header decide on the request's cache salt, if there is such a header and the request has it. An empty one says
// nothing. Of several copies it cannot be told which one the engine takes.
func takeSalt(p *pool.Pool, req Request, parsed *openai.Request) {
	name := p.SaltHeader()
	if name == "" || req.Header == nil {
		return
	}
	if req.Several != nil && req.Several(name) {
		parsed.RefuseSalt()
		return
	}
	if salt := req.Header(name); salt != "" {
		parsed.TakeSalt(salt)
	}
}
