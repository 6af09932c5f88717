package config

import (
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Node is the whole configuration file of a node: kvsteer node, beside the engines of a host.
type Node struct {
	Name       string     `yaml:"name" doc:"What routers call the node in their logs, metrics and state. Not set: the host's name. At most 253 bytes."`
	Listen     string     `yaml:"listen" default:"127.0.0.1:9010" doc:"Where routers dial the node: ip:port. Off loopback it needs tls, or insecure: true."`
	TLS        ServerTLS  `yaml:"tls"`
	TokenFile  string     `yaml:"token_file" doc:"File with a token that routers must bring, the one of their feed.token_file. Read again when it changes."`
	Insecure   bool       `yaml:"insecure" default:"false" doc:"Allows listen and admin.listen off loopback in clear text."`
	Admin      NodeAdmin  `yaml:"admin" doc:"The admin listener; admin: ip:port is short for admin.listen."`
	StateDir   string     `yaml:"state_dir" doc:"Folder in which the node keeps the ports that it picked, and what it knows of engines, across a restart of its own; made if it is missing, and of this node alone. Needed for events.listen: auto."`
	Warmup     Duration   `yaml:"warmup" default:"2s" doc:"Longest time after the start that routers wait for engines to be connected, so that they are told of saved mirrors in place of nothing. Below their feed.stale_after, in which they go by what they knew. Range: 0s to 1m."`
	Window     Duration   `yaml:"window" default:"20ms" doc:"Time over which an engine's changes are gathered before they go to routers as net changes. Range: 1ms to 1s."`
	WindowKeys int        `yaml:"window_keys" default:"4096" doc:"Changed blocks of one engine that end a window before its time. Range: 64 to 65536."`
	MaxBlocks  int        `yaml:"max_blocks" default:"2000000" doc:"Blocks that are kept of one engine, or of one data-parallel rank of it; beyond that the leaves that were used longest ago are left out, and problem mirror_full says so. Range: 1000 to 16777216, as many as routers take."`
	Ports      PortRange  `yaml:"ports" default:"5557-5999" doc:"Ports of loopback that events.listen: auto picks from: one for each engine and rank, and as many for events.replay: auto."`
	Scrape     Scrape     `yaml:"scrape"`
	Probe      Probe      `yaml:"probe"`
	Engines    NodeHTTP   `yaml:"engines"`
	Pools      []NodePool `yaml:"pools" doc:"The engines of this host, by the base weights that they serve. At least one pool."`
}

// NodeAdmin is the node's listener of metrics, health, state and commands.
type NodeAdmin struct {
	Listen    string    `yaml:"listen" default:"127.0.0.1:9011" doc:"Listener of /metrics, /healthz, /readyz and the admin calls: ip:port. Off loopback it needs token_file, and tls or insecure: true."`
	TokenFile string    `yaml:"token_file" doc:"File with a token that requests must bring as Authorization: Bearer; /healthz and /readyz need none. Read again when it changes."`
	Write     bool      `yaml:"write" default:"false" doc:"Allows calls that change something: drain, undrain, reset."`
	TLS       ServerTLS `yaml:"tls"`
}

func (a *NodeAdmin) parse(text string) error {
	if _, err := netip.ParseAddrPort(text); err != nil {
		return fmt.Errorf("%q is not ip:port", text)
	}
	a.Listen = text
	return nil
}

// Scrape is how the engines' metrics are read.
type Scrape struct {
	Interval Duration `yaml:"interval" default:"1s" doc:"Time between two GET /metrics of an engine, which tell routers its load. Range: 100ms to 1m, or 0s (off)."`
	Profile  string   `yaml:"profile" default:"auto" doc:"Names of the engines' metrics: vllm or sglang; auto: those of pools.engine."`
	Labels   []string `yaml:"labels" doc:"Only series with these labels, each written name=value: for an engine whose /metrics tells of others too."`
}

// NodeHTTP is how the node asks all its engines.
type NodeHTTP struct {
	TLS ClientTLS `yaml:"tls"`
}

// NodePool are the engines of a node that serve the same base weights.
type NodePool struct {
	Name            string      `yaml:"name" doc:"Name of the pool, the same as in the routers' configuration: blocks are named by it."`
	Models          []string    `yaml:"models" doc:"Served names of the base model. At least one; a name belongs to one pool."`
	Engine          string      `yaml:"engine" default:"vllm" doc:"What the engines are: vllm or sglang."`
	AdaptersRefresh Duration    `yaml:"adapters_refresh" default:"30s" doc:"Time between two GET /v1/models of an engine, which tell routers of its adapters, so that they need not ask. It is asked also when it comes back. Range: 1s to 1h, or 0s (off: routers ask)."`
	APIKeyFile      string      `yaml:"api_key_file" doc:"File with the key for the engines' /v1/models, sent as Authorization: Bearer."`
	HashSeed        string      `yaml:"hash_seed" doc:"PYTHONHASHSEED of the pool's engines, the same for all, as a text; empty = 0, which is what kvsteer engine-args gives them. With it the blocks that engines hold can be recognised again after a loss of events. At most 256 bytes."`
	Tiers           NodeTiers   `yaml:"tiers"`
	AdapterIDs      []AdapterID `yaml:"adapter_ids" doc:"Names of adapters by number, for engines whose events have no names (vLLM before 0.14): their blocks are not matched without."`
	Tokenizer       Tokenizer   `yaml:"tokenizer"`
	Engines         []Engine    `yaml:"engines" doc:"The engine replicas on this host. At least one."`
}

// NodeTiers is what the media are that events name; what they are worth is the routers' to say.
type NodeTiers struct {
	Media  []Medium `yaml:"media" doc:"What the media named in events are, beside what is built in: gpu and device are the device; cpu, cpu_pinned and host are host; disk is disk, for 10m; all others are ignored."`
	Demote Duration `yaml:"demote" default:"0s" doc:"How long a block that leaves the device is taken to be in host memory: for engines with an offload tier that publishes nothing. 0s = it is gone. Range: 0s to 24h."`
}

// Tokenizer are files of the model that the node offers to routers.
type Tokenizer struct {
	Dir     string `yaml:"dir" doc:"Folder of the model whose tokenizer files (tokenizer.json, its configuration, the chat template) the node offers to its routers. Not set: none."`
	MaxSize Size   `yaml:"max_size" default:"64MiB" doc:"Longest file that is offered. Range: 1KiB to 1GiB."`
}

// Engine is one engine replica of a node.
type Engine struct {
	Address string       `yaml:"address" doc:"The engine's HTTP server as routers and Envoy reach it: ip:port, or :port for this host, at the address that a router dialled."`
	Drain   bool         `yaml:"drain" default:"false" doc:"Has routers send no new request to this engine."`
	Events  EngineEvents `yaml:"events"`
}

// EngineEvents is where the KV cache events of a node's engine come from.
type EngineEvents struct {
	Listen string `yaml:"listen" doc:"Where the node waits for the engine to connect, on loopback: tcp://ip:port, or auto for a port of ports that the node picks and keeps. Not set, nor dial: auto."`
	Dial   string `yaml:"dial" doc:"tcp://ip:port that the engine binds. Such an engine publishes the token ids of every prompt to whoever reaches the port."`
	Replay string `yaml:"replay" doc:"tcp://ip:port that the engine's replay socket binds, of rank 0 as listen or dial, for batches of events that were missed; auto for a port that the node picks, which is what listen: auto goes with; none. Without it what is missed costs what is known of the engine's cache."`
	Topic  string `yaml:"topic" doc:"Only messages whose topic starts with this text."`
	Ranks  int    `yaml:"ranks" default:"1" doc:"Data-parallel ranks of the engine. Each publishes at a port of its own: that of listen or dial plus the rank, or what the engine says in /kv_event_sources. Range: 1 to 64."`
}

// Words for an address of events.
const (
	Auto = "auto" // the node picks it and keeps it
	None = "none"
)

// Local is where the node itself reaches the engine.
func (e Engine) Local() string {
	if strings.HasPrefix(e.Address, ":") {
		return "127.0.0.1" + e.Address
	}
	return e.Address
}

// At is the event source with the ports that stand for auto; a port that is 0 leaves the word.
func (e EngineEvents) At(events, replay uint16) Events {
	chosen := func(address string, port uint16) string {
		switch {
		case address == Auto && port != 0:
			return fmt.Sprintf("tcp://127.0.0.1:%d", port)
		case address == None:
			return ""
		}
		return address
	}
	return Events{Listen: chosen(e.Listen, events), Dial: e.Dial, Replay: chosen(e.Replay, replay), Topic: e.Topic, Ranks: e.Ranks}
}

// TokenizerFiles are the files of a model's folder that say how prompts become tokens, by the names that Hugging Face gives them. Nothing else of
// Tokenizer.Dir is offered.
func TokenizerFiles() []string {
	return []string{
		"added_tokens.json", "chat_template.jinja", "chat_template.json", "config.json", "generation_config.json", "merges.txt", "special_tokens_map.json", "tokenizer.json",
		"tokenizer.model", "tokenizer_config.json", "vocab.json",
	}
}

// EngineCount is the number of engines of all pools.
func (n *Node) EngineCount() int {
	count := 0
	for _, p := range n.Pools {
		count += len(p.Engines)
	}
	return count
}

// AutoPorts is how many ports of Node.Ports the engine takes.
func (e Engine) AutoPorts() int {
	n := 0
	for _, address := range []string{e.Events.Listen, e.Events.Replay} {
		if address == Auto {
			n += e.Events.Ranks
		}
	}
	return n
}

// PortRange are TCP ports from the first to the last, written 5557-5999.
type PortRange [2]uint16

// Ports is how many there are.
func (r PortRange) Ports() int { return int(r[1]) - int(r[0]) + 1 }

func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r[0], r[1]) }

func (r *PortRange) parse(text string) error {
	first, last, ok := strings.Cut(text, "-")
	from, err1 := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	to, err2 := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	if !ok || err1 != nil || err2 != nil || from < 1024 || to < from {
		return fmt.Errorf("%q is not a range of ports such as 5557-5999, from 1024 on", text)
	}
	*r = PortRange{uint16(from), uint16(to)}
	return nil
}

// LoadNode reads and checks the file of a node at path. The error joins every Problem found.
func LoadNode(path string) (*Node, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	if engines, endpoints := poolsHave(data); endpoints && !engines {
		return nil, Problem{File: path, Text: "this is the file of a router, whose pools have endpoints: kvsteer serve takes it; the pools of a node have engines"}
	}
	return ParseNode(path, data)
}

// ParseNode checks data as the content of the file of a node called name. The error joins every Problem found.
func ParseNode(name string, data []byte) (*Node, error) {
	n := DefaultNode()
	if err := parse(name, data, reflect.ValueOf(n).Elem(), func(d *decoder) { d.nodeFile(n) }); err != nil {
		return nil, err
	}
	if n.Name == "" {
		host, err := os.Hostname()
		if err != nil || !nodeName(host) {
			return nil, Problem{File: name, Key: "name", Text: "the host's name cannot be had, or is none: give the node one"}
		}
		n.Name = host
	}
	return n, nil
}

// DefaultNode is the configuration of an empty file of a node: it lacks only pools.
func DefaultNode() *Node {
	n := new(Node)
	setDefaults(reflect.ValueOf(n).Elem())
	return n
}

// MarshalJSON writes the configuration with every key, as that of Config does. It has no secrets: files of keys and tokens are named, not read.
func (n *Node) MarshalJSON() ([]byte, error) { return marshal(*n) }

// IsNode reports whether a file is one of a node. One that cannot be read is none.
func IsNode(path string) bool {
	data, err := read(path)
	return err == nil && OfNode(data)
}

// OfNode reports whether data is the content of a node's file: its pools have engines, and no endpoints.
func OfNode(data []byte) bool {
	engines, endpoints := poolsHave(data)
	return engines && !endpoints
}

// poolsHave reports whether a pool of a file has engines, as those of nodes, or endpoints, as those of routers.
func poolsHave(data []byte) (engines, endpoints bool) {
	file, err := parser.ParseBytes(data, 0)
	if err != nil || len(file.Docs) == 0 {
		return false, false
	}
	pools, ok := entry(file.Docs[0].Body, "pools").(*ast.SequenceNode)
	if !ok {
		return false, false
	}
	for _, p := range pools.Values {
		engines, endpoints = engines || entry(p, "engines") != nil, endpoints || entry(p, "endpoints") != nil
	}
	return engines, endpoints
}

// entry is the value of a key of a mapping; nil where there is none.
func entry(n ast.Node, key string) ast.Node {
	m, ok := n.(ast.MapNode)
	if !ok {
		return nil
	}
	for it := m.MapRange(); it.Next(); {
		if text, ok := scalarText(it.Key()); ok && text == key {
			return it.Value()
		}
	}
	return nil
}
