package engineargs

import (
	"fmt"
	"strings"

	"github.com/kvsteer/kvsteer/internal/config"
)

// kinds holds what differs between makes before any argument is made.
var kinds = map[Kind]struct {
	name    string
	oldest  release  // with KV cache events that the subscriber reads
	command []string // that starts the engine; the model follows
	ranks   string   // option for the number of data-parallel ranks
}{
	VLLM:   {"vLLM", release{0, 9}, []string{"vllm", "serve"}, "--data-parallel-size"},
	SGLang: {"SGLang", release{0, 4, 9}, []string{"python3", "-m", "sglang.launch_server", "--model-path"}, "--dp-size"},
}

// HashSeed is the PYTHONHASHSEED of engines whose pool names none.
const HashSeed = "0"

// vllm adds vLLM's own options. Hash algorithm and seed do not matter to matching, since the subscriber names blocks by their tokens;
// with them equal prompts have equal hashes on all engines, and the subscriber can compute them after a loss of events.
func vllm(engine *Engine, p *config.Pool, r release) {
	// sha256_cbor came with 0.10.2; the releases before know sha256, which hashes Python's pickle form.
	algorithm := "sha256_cbor"
	if r.before(release{0, 10, 2}) {
		algorithm = "sha256"
	}
	serve(engine, p.Models)
	engine.Args = append(engine.Args, "--enable-prefix-caching", "--enable-prompt-tokens-details", "--prefix-caching-hash-algo", algorithm)
	// Until 0.28 an unset seed is random in each process; from 0.29 on it is fixed, to another value than this.
	seed := p.HashSeed
	if seed == "" {
		seed = HashSeed
	}
	if p.HashSeed == "" && !engine.Node { // nodes take it to be HashSeed
		engine.Notes = append(engine.Notes, `With hash_seed: "0" in the pool, blocks are recognised by their hashes after a loss of events.`)
	}
	engine.Env = append(engine.Env, Variable{"PYTHONHASHSEED", seed})
	if r.before(release{0, 17, 1}) {
		engine.Notes = append(engine.Notes, "Events of vLLM before 0.17.1 do not tell salted blocks from plain ones: only plain prompts are matched.")
	}
	if len(p.Adapters) > 0 {
		engine.Notes = append(engine.Notes, "To serve the pool's adapters add: --enable-lora --lora-modules "+modules(p.Adapters))
	}
}

// sglang adds SGLang's own options. Its hashes have neither algorithm nor seed to choose, and its prefix cache is on unless
// --disable-radix-cache is given. Its page has one token by default, which would make every token an event of its own.
func sglang(engine *Engine, p *config.Pool, r release) {
	serve(engine, p.Models[:1])
	engine.Args = append(engine.Args, "--page-size", "16", "--enable-cache-report")
	if engine.Node {
		engine.Args = append(engine.Args, "--enable-metrics") // which it reads; vLLM's are always there
	}
	engine.Notes = append(engine.Notes, "kvsteer reads SGLang's events but has not run with its engines yet.")
	if len(p.Models) > 1 {
		engine.Notes = append(engine.Notes, fmt.Sprintf("SGLang serves one name, %q; requests for the pool's other models would be refused.", p.Models[0]))
	}
	if r.before(release{0, 5, 18}) {
		engine.Notes = append(engine.Notes, "Events of SGLang before 0.5.18 do not tell salted blocks from plain ones.")
	}
	if len(p.Adapters) > 0 {
		engine.Notes = append(engine.Notes, "To serve the pool's adapters add: --enable-lora --lora-paths "+modules(p.Adapters))
		if r.before(release{0, 5, 22}) {
			engine.Notes = append(engine.Notes, "Events of SGLang before 0.5.22 do not name adapters.")
		}
	}
}

// modules writes adapters as NAME=PATH; the configuration does not know the paths.
func modules(adapters []string) string {
	var all []string
	for _, a := range adapters {
		all = append(all, word(a+"=PATH"))
	}
	return strings.Join(all, " ")
}
