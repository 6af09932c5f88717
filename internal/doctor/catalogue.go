package doctor

import (
	"fmt"
	"strings"
)

// Severity says how much a finding matters.
type Severity string

// The severities, gravest first.
const (
	Error   Severity = "error"   // requests fail, or are not steered
	Warning Severity = "warning" // something is lost, or open to others
	Info    Severity = "info"    // worth knowing, nothing to mend
)

func (s Severity) rank() int {
	switch s {
	case Error:
		return 0
	case Warning:
		return 1
	}
	return 2
}

// Code names one kind of finding. Codes are stable: one is never given another meaning.
type Code string

// Codes by area: 1xx configuration, 2xx engines, 3xx events, 4xx Envoy, 5xx router, 6xx nodes and DNS.
const (
	NoEventSources Code = "KV101"
	NotSteering    Code = "KV102"
	ClearText      Code = "KV103"
	FileUnreadable Code = "KV104"
	Draining       Code = "KV105"

	StateUnused     Code = "KV106"
	StateUnwritable Code = "KV107"

	EngineSilent      Code = "KV201"
	NameDiffers       Code = "KV202"
	NameUnlisted      Code = "KV203"
	PrefixCachingOff  Code = "KV204"
	BlockSizeUnknown  Code = "KV205"
	HashUnknown       Code = "KV206"
	PageSizeOne       Code = "KV207"
	EngineBad         Code = "KV208"
	EngineLimited     Code = "KV209"
	DetailsOff        Code = "KV210"
	KeyRefused        Code = "KV211"
	TokenizeRefused   Code = "KV212"
	ModelLenDiffers   Code = "KV213"
	ProbeFailed       Code = "KV214"
	EndpointNoEvents  Code = "KV301"
	EventsUnconnected Code = "KV302"
	EventsAbsent      Code = "KV303"
	EventsOpen        Code = "KV304"
	EventsOff         Code = "KV305"
	EventsElsewhere   Code = "KV306"
	NoTokenIDs        Code = "KV307"
	BlocksPartly      Code = "KV308"
	EventsUnreadable  Code = "KV309"
	SeveralRanks      Code = "KV310"
	SecondEngine      Code = "KV311"
	NoReplay          Code = "KV312"
	ReplayElsewhere   Code = "KV313"
	ReplayFailing     Code = "KV314"
	ReplayHoles       Code = "KV315"
	EventsLost        Code = "KV316"
	Healing           Code = "KV317"
	HealingByContent  Code = "KV318"
	OrphansHigh       Code = "KV319"
	Speculates        Code = "KV320"
	MirrorDamaged     Code = "KV321"
	SavesFailing      Code = "KV322"
	MirrorFull        Code = "KV323"

	EnvoySilent        Code = "KV401"
	EnvoyOld           Code = "KV402"
	LayoutWrong        Code = "KV403"
	NoFilter           Code = "KV404"
	HeadersKept        Code = "KV405"
	FailClosed         Code = "KV406"
	TimeoutShort       Code = "KV407"
	NoFallback         Code = "KV408"
	ChoiceUnused       Code = "KV409"
	EndpointNotInEnvoy Code = "KV410"
	EndpointOnlyEnvoy  Code = "KV411"
	BodyNotBuffered    Code = "KV412"
	MutationRefused    Code = "KV413"
	RouterUnreachable  Code = "KV414"
	RouterElsewhere    Code = "KV415"
	NoRecords          Code = "KV416"
	MetadataDropped    Code = "KV417"
	BodyLimit          Code = "KV418"
	RouteTimeout       Code = "KV419"
	NoRetry            Code = "KV420"
	IdleTimeout        Code = "KV421"
	BodyStreamed       Code = "KV422"

	RouterSilent    Code = "KV501"
	RouterUnready   Code = "KV502"
	IndexDiffers    Code = "KV503"
	IndexFull       Code = "KV504"
	OtherConfig     Code = "KV505"
	EndpointDown    Code = "KV506"
	TokenizeFailing Code = "KV507"
	RouterPanics    Code = "KV508"
	ModelsUnknown   Code = "KV509"
	ReloadRefused   Code = "KV510"
	ChoiceNotObeyed Code = "KV511"
	RefreshFailing  Code = "KV512"
	BlocksUnclosed  Code = "KV513"

	NodeUnreachable Code = "KV601"
	NodeStale       Code = "KV602"
	EndpointRefused Code = "KV603"
	NodeVersion     Code = "KV604"
	SeveralRouters  Code = "KV605"
	PoolEmpty       Code = "KV606"
	NameEmpty       Code = "KV607"
	NodeSilent      Code = "KV608"
	NodeUnready     Code = "KV609"
	NodeUnwatched   Code = "KV610"
	LoadUnknown     Code = "KV611"
	FilesNotOffered Code = "KV612"
	PortsUnknown    Code = "KV613"
	PortTaken       Code = "KV614"
)

// Entry is what a code means.
type Entry struct {
	Code     Code
	Severity Severity
	Meaning  string // one sentence without its stop
	Advice   string // one line: what to do
}

// Catalogue returns every code there is, in their order.
func Catalogue() []Entry {
	return []Entry{
		{NoEventSources, Info, "no endpoint of the pool has an event source, so its prompts are matched by their text only", "fine for a trial; add events to match exactly"},
		{NotSteering, Info, "the pool's mode or percent leaves some or all of its requests unsteered", "set mode: on and percent: 100 when the trial is over"},
		{ClearText, Warning, "prompts, tokens or what engines hold travel off loopback in clear text", "switch tls on and remove insecure: true"},
		{FileUnreadable, Error, "a file that the configuration names cannot be read by who runs the doctor, or does not hold what it should", "create or mend it, or run the doctor as the user of the router or node"},
		{Draining, Info, "the endpoint gets no new requests, because the configuration or an admin call drains it", "undrain it when the work on it is done"},
		{StateUnused, Warning, "state_dir is set, and no saved mirror can ever be taken up again: only a replay shows that the engine is the same process", "give the engines events.replay, or take state_dir away"},
		{StateUnwritable, Error, "state_dir is no folder, or none that who runs the doctor can write to", "mend its rights, or run the doctor as the user of the router or node"},

		{EngineSilent, Error, "the engine does not answer GET /health", "start it, or correct the endpoint's address"},
		{NameDiffers, Error, "the engine does not serve a name that its pool lists", "make models and adapters equal to the engine's served names"},
		{NameUnlisted, Info, "the engine serves a name that its pool does not list: requests for it are not steered", "add the name to models or adapters"},
		{PrefixCachingOff, Error, "the engine's prefix caching is off, so nothing can be reused", "start the engine with prefix caching"},
		{BlockSizeUnknown, Warning, "the engine's metrics do not tell its block size", "let the engine serve metrics; SGLang needs --enable-metrics"},
		{HashUnknown, Info, "the engine's metrics do not tell its hash algorithm; exact matching by token ids does not need it", "nothing, unless its events lack token ids"},
		{PageSizeOne, Warning, "the engine's blocks are one token long: an event and an index entry for every token", "start the engine with --page-size 16 or 64"},
		{EngineBad, Error, "an engine release that cannot work with exact matching", "upgrade the engine"},
		{EngineLimited, Warning, "an engine release with a known limit", "upgrade the engine, or know the limit"},
		{DetailsOff, Info, "answers do not tell how many prompt tokens came from the cache", "start the engine with --enable-prompt-tokens-details"},
		{KeyRefused, Warning, "the engine refuses the key of the pool's api_key_file, or wants one that is not configured", "write the engine's key into api_key_file"},
		{TokenizeRefused, Error, "the engine's /tokenize fails, so text prompts cannot be matched exactly", "let the router reach /tokenize on every engine"},
		{ModelLenDiffers, Warning, "max_model_len differs from the engine's", "remove max_model_len, or set the engine's value"},
		{ProbeFailed, Error, "the engine failed the completion of one token that --probe sent", "read the engine's log"},

		{EndpointNoEvents, Warning, "the endpoint has no event source while others of its pool have one", "add events to the endpoint"},
		{EventsUnconnected, Error, "the router, or the node, has no connection for the engine's events", "compare the engine's arguments with what kvsteer engine-args prints"},
		{EventsAbsent, Error, "prompts were computed, and no event came from any engine of the pool", "start the engines as kvsteer engine-args prints"},
		{EventsOpen, Warning, "an event port is open beyond loopback: it tells the token ids of every prompt to whoever connects", "close the port to all but the router, or use events.listen on one host"},
		{EventsOff, Error, "the engine says that it publishes no KV cache events", "start it as kvsteer engine-args prints"},
		{EventsElsewhere, Error, "the engine publishes its events where the router or the node does not look for them", "start it as kvsteer engine-args prints, or change events"},
		{NoTokenIDs, Error, "the engine's events carry no token ids that can be matched", "publish from the engine's own cache"},
		{BlocksPartly, Warning, "the engine's blocks are known in part only", "see problems of an endpoint in docs/metrics.md"},
		{EventsUnreadable, Warning, "events came that could not be read", "compare the engine's release with the supported ones"},
		{SeveralRanks, Warning, "the engine has another number of data-parallel ranks than the configuration says, and is not matched", "set events.ranks to it"},
		{SecondEngine, Warning, "a second engine connects to an event port and is refused", "give each engine a port of its own"},
		{NoReplay, Info, "events that are missed cannot be had again: after a lost connection and a restart of the router or node the caches are learned anew", "start the engines with a replay_endpoint, as kvsteer engine-args prints, and set events.replay"},
		{ReplayElsewhere, Warning, "the engine has no replay socket, or another one than events.replay names", "start the engine as kvsteer engine-args prints, or change events.replay"},
		{ReplayFailing, Warning, "replays of missed events fail", "see that the router or node reaches the engine's replay socket; outcomes are in docs/metrics.md"},
		{ReplayHoles, Info, "the engine loses batches in the middle of long replays, as vLLM up to 0.32 does; they are asked for again", "nothing, unless KV316 is found too"},
		{EventsLost, Warning, "events were lost for good, so what was known of the engine's cache was forgotten", "set events.replay; if it is set, raise buffer_steps of the engine and see docs/operations.md#kvsteereventslost"},
		{Healing, Info, "blocks whose events were not seen are recognised by the prompts that are routed: the engine ran before the router followed it, or events were lost", "nothing; with events.replay there is less to recognise"},
		{HealingByContent, Info, "the engine's block hashes cannot be computed, so blocks whose events were not seen are recognised by their content, for 10 minutes at a time", "start the engines of the pool with one PYTHONHASHSEED, name it as hash_seed, and hash by sha256 or sha256_cbor"},
		{OrphansHigh, Warning, "many blocks of the engine hang on blocks that are not known, so they cannot be matched", "wait for a turn of each conversation after a start; if it stays, see docs/operations.md#kvsteerorphanshigh"},
		{Speculates, Error, "the engine speculates with a draft model, and its block hashes cover tokens after their blocks: they cannot be matched", "switch that speculation off, or leave events out: the endpoint is then matched by text"},
		{MirrorDamaged, Warning, "a saved mirror could not be read, or was not what had been written, and was set aside", "look at the disk of state_dir"},
		{SavesFailing, Warning, "the mirror of the engine's cache could not be saved", "look at the space and the rights of state_dir"},
		{MirrorFull, Warning, "the engine holds more blocks than are kept of it: those that were used longest ago are not matched", "raise the node's max_blocks, or live with it: docs/operations.md#a-full-mirror"},

		{EnvoySilent, Error, "Envoy's admin listener does not answer, or not as Envoy does", "start Envoy, or name its admin listener with --envoy-admin"},
		{EnvoyOld, Error, "an Envoy release that is not supported", "run Envoy 1.40, or at least 1.37"},
		{LayoutWrong, Error, "the layout does not fit the Envoy release: requests without a decision get 503", "print the configuration for this release with kvsteer envoy"},
		{NoFilter, Error, "no ext_proc filter of Envoy leads to the router", "add the filter that kvsteer envoy prints"},
		{HeadersKept, Error, "clients can name the endpoint or the rank that serves them, or another's cache salt: a header of theirs that the router sets or trusts is not removed early", "remove it by early_header_mutation_extensions; kvsteer envoy prints them"},
		{FailClosed, Error, "Envoy fails requests when the router does not answer", "set failure_mode_allow: true"},
		{TimeoutShort, Error, "Envoy gives up before the router decides", "set message_timeout above budget"},
		{NoFallback, Error, "a request without a decision has nowhere to go", "add a fallback cluster or route, or set fallback: none"},
		{ChoiceUnused, Error, "no route of Envoy follows the router's choice", "route to a cluster that reads the target header or the list in metadata, as kvsteer envoy prints it"},
		{EndpointNotInEnvoy, Warning, "an endpoint of the configuration is in none of Envoy's clusters that spread requests", "print Envoy's configuration again, or add the endpoint"},
		{EndpointOnlyEnvoy, Warning, "Envoy's fallback sends requests to an endpoint that the configuration lacks", "add the endpoint to its pool, or take it from Envoy"},
		{BodyNotBuffered, Error, "the router does not get the whole request body before Envoy goes on, so nothing is matched", "set request_header_mode: SEND and request_body_mode: BUFFERED (or FULL_DUPLEX_STREAMED)"},
		{MutationRefused, Error, "the filter's mutation_rules refuse a header that the router sets", "allow it in mutation_rules; kvsteer envoy prints them"},
		{RouterUnreachable, Error, "Envoy cannot reach the router by the filter's cluster", "see that the cluster exists, speaks HTTP/2 and is healthy"},
		{RouterElsewhere, Warning, "the filter's cluster leads to another address than listen", "make them equal, or list the address in envoy.routers"},
		{NoRecords, Info, "Envoy sends the router no record of finished requests", "add the access logger that kvsteer envoy prints, or set envoy.access_log_service: false"},
		{MetadataDropped, Warning, "Envoy drops metadata: what describes a decision, the list of endpoints, or the subset to choose from", "add the namespace to metadata_options, as kvsteer envoy prints it"},
		{BodyLimit, Warning, "Envoy refuses bodies with 413 that are within limits.body", "set request_body_buffer_limit of the virtual host to limits.body"},
		{RouteTimeout, Warning, "a route's timeout cuts long answers", "set timeout: 0s on the engines' routes"},
		{NoRetry, Warning, "a request whose first choice is dead is not moved on", "add a retry_policy with connect-failure"},
		{IdleTimeout, Warning, "Envoy keeps idle connections longer than the engines do, and a request on a dying one fails", "set idle_timeout: 3s on the clusters that follow the choice"},
		{BodyStreamed, Info, "bodies are streamed through the router (FULL_DUPLEX_STREAMED): Envoy cannot fall back for a request that it has handed over", "set request_body_mode: BUFFERED, or envoy.body: full_duplex if it is meant"},

		{RouterSilent, Error, "the router's admin listener does not answer, or not to the doctor", "start the router, or name its admin listener with --admin and its token with --token-file"},
		{RouterUnready, Error, "the router is not ready", "see what it misses"},
		{IndexDiffers, Error, "a checked match was wrong, and the index walks every block since", "report it, and restart the router"},
		{IndexFull, Warning, "blocks do not fit into the index, or exceed a node's share of it: their endpoints are not matched", "raise index.max_blocks; with index_share, see why that node announces so much"},
		{OtherConfig, Warning, "the router, or the node, runs with other endpoints than the configuration names", "reload it"},
		{EndpointDown, Warning, "the router, or the node, takes an endpoint that answers for down", "see that it can reach the endpoint"},
		{TokenizeFailing, Warning, "many calls of /tokenize fail or are too slow", "see the engines' load, tokenize.timeout and api_key_file"},
		{RouterPanics, Error, "the router recovered from panics, or chose addresses that are none", "report it with the router's log"},
		{ModelsUnknown, Warning, "many requests ask for a model that no pool lists", "compare models and adapters with what clients ask for"},
		{ReloadRefused, Error, "the router, or the node, refused a changed configuration and goes on with the one before", "kvsteer serve --check, or kvsteer node --check, says what is wrong with it"},
		{ChoiceNotObeyed, Warning, "many requests ran at another endpoint than the one that was chosen", "see Envoy's connections to the engines, and whether something else routes there"},
		{RefreshFailing, Warning, "the engine does not tell the router, or the node, which models and adapters it serves", "let it reach /v1/models on every engine, with the key of api_key_file"},
		{BlocksUnclosed, Error, "an endpoint's blocks came without others that they rest on, and are not matched until they come anew", "upgrade its node; if both are of this release, report it: no sound node announces that"},

		{NodeUnreachable, Error, "the router is not connected with a node: what its engines hold is not known, and they are routed by load", "see that kvsteer node runs there, that the router reaches its listener, and that feed.tls and feed.token_file fit"},
		{NodeStale, Warning, "a node is connected, and some of its blocks are not matched because they were not heard of for too long", "see the node's load and the network between them; docs/operations.md#kvsteernodestale"},
		{EndpointRefused, Warning, "an endpoint that a node announces, or that DNS gives, is not taken", "mend what the finding says: one node for each endpoint, nodes[].allow, the pool's models, index.max_endpoints"},
		{NodeVersion, Error, "a node and the router have no version of their protocol in common", "upgrade the one that the finding names"},
		{SeveralRouters, Warning, "there may be more than one router, and an engine that connects for its events feeds exactly one", "let a node listen for the engines' events, and give each router nodes"},
		{PoolEmpty, Error, "the pool's endpoints come from DNS or nodes, and there is none", "see the findings about nodes and DNS, and the pool's name in the nodes' configuration"},
		{NameEmpty, Warning, "a DNS name has no address, or DNS does not answer for it", "look the name up on the router's host"},
		{NodeSilent, Error, "the node's admin listener does not answer, or not to the doctor", "start the node, or name its admin listener with --admin and its token with --token-file"},
		{NodeUnready, Error, "the node is not ready", "see what it misses"},
		{NodeUnwatched, Warning, "no router watches the node: what it knows is of no use", "list the node under nodes in the configuration of each router; KV601 on a router's side says what is in the way"},
		{LoadUnknown, Warning, "the node cannot read the engine's metrics, so routers are not told how busy it is", "let the engine serve /metrics (SGLang needs --enable-metrics), and see pools[].engine and scrape"},
		{FilesNotOffered, Warning, "files of a tokenizer that the node is to offer are not there, or cannot be offered", "see tokenizer.dir, the rights on its files and tokenizer.max_size"},
		{PortsUnknown, Warning, "no ports are kept for an engine with events.listen: auto, so it cannot have been started with them", "start the node, or run kvsteer engine-args, and start the engine as that prints"},
		{PortTaken, Error, "another process listens where the node is to, and the node does not run", "end that process, or give the node another port"},
	}
}

func entry(c Code) Entry {
	for _, e := range Catalogue() {
		if e.Code == c {
			return e
		}
	}
	return Entry{Code: c, Severity: Error}
}

// Reference returns the catalogue as a Markdown table. Each code is an anchor.
func Reference() string {
	var b strings.Builder
	b.WriteString("| code | severity | what it means | what to do |\n|---|---|---|---|\n")
	for _, e := range Catalogue() {
		fmt.Fprintf(&b, "| <a id=%q></a>`%s` | %s | %s | %s |\n", strings.ToLower(string(e.Code)), e.Code, e.Severity, e.Meaning, e.Advice)
	}
	return b.String()
}
