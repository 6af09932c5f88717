package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kvsteer/kvsteer/internal/config"
)

// engineFacts is what one engine says of itself.
type engineFacts struct {
	pool     *config.Pool
	endpoint *config.Endpoint
	key      string
	dynamic  bool // it does not stand in the configuration

	health, models, version, events, server, tokenize, probe reply
	metrics                                                  *page
}

func (e *engineFacts) subject() string { return "engine " + e.endpoint.Address }

// up reports whether the engine answers at all.
func (e *engineFacts) up() bool { return e.health.err == nil && e.health.status < 500 }

// readEngine asks one engine. One that does not answer is not asked further.
func (d *Doctor) readEngine(ctx context.Context, e *engineFacts) {
	whole := 2 * d.opt.Timeout // an engine that is slow with every page does not hold up the others for long
	ctx, cancel := context.WithTimeoutCause(ctx, whole, fmt.Errorf("the pages before it took %s", whole))
	defer cancel()
	scheme := "http://"
	if d.opt.Config.Engines.TLS.On() {
		scheme = "https://"
	}
	c, base := d.clients.engines, scheme+e.endpoint.Address
	if e.health = c.get(ctx, base+"/health", e.key, maxReply); !e.up() {
		return
	}
	e.models = c.get(ctx, base+"/v1/models", e.key, maxReply)
	if r := c.get(ctx, base+"/metrics", e.key, maxReply); r.ok() {
		e.metrics = parsePage(string(r.body))
	}
	if e.version = c.get(ctx, base+"/version", e.key, maxReply); e.version.ok() {
		e.events = c.get(ctx, base+"/kv_event_sources", e.key, maxReply)
	} else {
		// vLLM serves /server_info in its development mode only, and then all its environment: it is asked for SGLang's sake.
		e.server = c.get(ctx, base+"/server_info", e.key, maxReply)
		if !e.server.ok() {
			e.server = c.get(ctx, base+"/get_server_info", e.key, maxReply)
		}
	}
	model := e.pool.Models[0]
	if served := e.served(); len(served) > 0 && !slices.Contains(served, model) {
		model = served[0] // that its name differs is found anyway
	}
	e.tokenize = c.post(ctx, base+"/tokenize", e.key, object(map[string]any{"model": model, "prompt": "kvsteer"}))
	if d.opt.Probe {
		e.probe = c.post(ctx, base+"/v1/completions", e.key,
			object(map[string]any{"model": model, "prompt": "kvsteer", "max_tokens": 1, "temperature": 0}))
	}
}

func object(m map[string]any) []byte {
	b, _ := json.Marshal(m) // a map of texts and numbers always has a form
	return b
}

// kind is the engine's name and release, either "" when it cannot be told.
func (e *engineFacts) kind() (engine, release string) {
	if e.version.ok() {
		if v := e.version.tree().text("version"); v != "" {
			return vllm, v
		}
	}
	info := e.server.tree()
	if info.at("page_size").there() || e.metrics.has("sglang:") || slices.Contains(e.owners(), "sglang") {
		return sglang, info.text("version")
	}
	if e.metrics.has("vllm:") {
		return vllm, ""
	}
	return "", ""
}

func (e *engineFacts) owners() []string {
	var owners []string
	for _, m := range e.models.tree().list("data") {
		owners = append(owners, m.text("owned_by"))
	}
	return owners
}

// served are the names that the engine serves.
func (e *engineFacts) served() []string {
	var names []string
	for _, m := range e.models.tree().list("data") {
		if id := m.text("id"); id != "" {
			names = append(names, id)
		}
	}
	return names
}

// cache is one setting of the engine's cache; "" when it is not told. vLLM writes a setting that is unset as None.
func (e *engineFacts) cache(name string) string {
	for _, s := range e.metrics.named("vllm:cache_config_info") {
		if v := s.labels[name]; v != "" && v != "None" {
			return v
		}
	}
	return ""
}

// examine judges what the engine says, events apart.
func (e *engineFacts) examine(c *collector) {
	if !e.up() {
		c.found(EngineSilent, e.subject(), "GET /health: %s", e.health.says())
		return
	}
	e.examineNames(c)
	e.examineCache(c)
	engine, release := e.kind()
	for _, b := range badReleases() {
		if b.engine == engine && olderThan(release, b.before) {
			c.found(b.code, e.subject(), "%s %s: %s before %s", engine, release, b.what, b.before)
			break // the gravest stands first
		}
	}
	if release == "" {
		c.unknown(e.subject(), "release", "the engine does not tell it")
	}
	if !e.tokenize.ok() || len(e.tokenize.tree().list("tokens")) == 0 {
		why := e.tokenize.says()
		if e.tokenize.ok() {
			why = "the answer holds no token ids"
		}
		c.found(TokenizeRefused, e.subject(), "POST /tokenize: %s", why)
	}
	e.examineProbe(c, engine)
}

func (e *engineFacts) examineNames(c *collector) {
	switch {
	case e.models.status == 401 || e.models.status == 403:
		if e.key == "" {
			c.found(KeyRefused, e.subject(), "GET /v1/models: status %d, and pool %s has no api_key_file", e.models.status, e.pool.Name)
		} else {
			c.found(KeyRefused, e.subject(), "GET /v1/models: status %d with the key of pool %s", e.models.status, e.pool.Name)
		}
		return
	case len(e.served()) == 0:
		c.unknown(e.subject(), "served names", "GET /v1/models names none (%s)", e.models.says())
		return
	}
	served := e.served()
	for _, list := range []struct {
		key   string
		names []string
	}{{"models", e.pool.Models}, {"adapters", e.pool.Adapters}} {
		for _, name := range list.names {
			if !slices.Contains(served, name) {
				c.found(NameDiffers, e.subject(), "it does not serve %q, which pool %s lists under %s; it serves %s", name, e.pool.Name, list.key, some(served))
			}
		}
	}
	for _, name := range served {
		if !slices.Contains(e.pool.Models, name) && !slices.Contains(e.pool.Adapters, name) && !e.adapts(name) {
			c.found(NameUnlisted, e.subject(), "it serves %q, which pool %s does not list", name, e.pool.Name)
		}
	}
	for _, m := range e.models.tree().list("data") {
		n, ok := m.number("max_model_len")
		if ok && e.pool.MaxModelLen > 0 && m.text("id") == e.pool.Models[0] && int(n) != e.pool.MaxModelLen {
			c.found(ModelLenDiffers, e.subject(), "max_model_len of pool %s is %d, the engine's is %.0f", e.pool.Name, e.pool.MaxModelLen, n)
		}
	}
}

// adapts reports whether the router learns by itself that a name is one of an adapter: it asks, and the engine says that it is on a model of the pool.
func (e *engineFacts) adapts(name string) bool {
	return e.pool.AdaptersRefresh > 0 && slices.ContainsFunc(e.models.tree().list("data"), func(m tree) bool {
		return m.text("id") == name && slices.Contains(e.pool.Models, m.text("parent"))
	})
}

// some lists a few texts.
func some(all []string) string {
	const most = 5
	quoted := make([]string, min(len(all), most))
	for i := range quoted {
		quoted[i] = strconv.Quote(all[i])
	}
	if len(all) > most {
		return strings.Join(quoted, ", ") + " and others"
	}
	return strings.Join(quoted, ", ")
}

func (e *engineFacts) examineCache(c *collector) {
	info := e.server.tree()
	size, algorithm := e.pageSize(), e.cache("prefix_caching_hash_algo")
	if size != "" && e.cache("block_size") == "" {
		algorithm = "sha256" // SGLang has one
	}
	switch size {
	case "":
		c.found(BlockSizeUnknown, e.subject(), "GET /metrics tells no block size")
	case "1":
		c.found(PageSizeOne, e.subject(), "its blocks are one token long")
	}
	if algorithm == "" && size != "" {
		c.found(HashUnknown, e.subject(), "GET /metrics tells no hash algorithm")
	}
	switch {
	case e.cache("enable_prefix_caching") == "False":
		c.found(PrefixCachingOff, e.subject(), "prefix caching is off")
	case info.flag("disable_radix_cache"):
		c.found(PrefixCachingOff, e.subject(), "its radix cache is disabled")
	}
}

// pageSize is the number of tokens in a block, as the engine tells it; "" when it does not.
func (e *engineFacts) pageSize() string {
	size := e.cache("block_size")
	if n, ok := e.server.tree().number("page_size"); ok && size == "" {
		return strconv.FormatFloat(n, 'f', -1, 64)
	}
	return size
}

func (e *engineFacts) examineProbe(c *collector, engine string) {
	usage := e.probe.tree().at("usage")
	switch {
	case !e.probe.asked:
		c.unknown(e.subject(), "cached tokens in answers", "only a completion shows them; --probe sends one, of a single token")
	case !e.probe.ok():
		c.found(ProbeFailed, e.subject(), "POST /v1/completions: %s", e.probe.says())
	case usage.at("prompt_tokens_details").there():
	case engine == sglang:
		c.unknown(e.subject(), "cached tokens in answers", "SGLang leaves them out while they are 0")
	default:
		c.found(DetailsOff, e.subject(), "usage.prompt_tokens_details of an answer is empty")
	}
}
