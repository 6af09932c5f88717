package openai

// Kind says which API a request belongs to.
type Kind uint8

// Kinds of requests.
const (
	None       Kind = iota // no JSON body to look at: not a POST, or an empty body
	Completion             // POST …/v1/completions
	Chat                   // POST …/v1/chat/completions
	Other                  // POST to any other path
)

// Form says how a request gives its prompt.
type Form uint8

// Forms of prompts.
const (
	NoPrompt Form = iota // none that can be keyed
	Text                 // Prompt, one string
	Tokens               // Tokens, the engine uses them as they are
	Messages             // Messages, to be rendered by the chat template
)

// Reason says why a prompt cannot be keyed exactly; one of a closed set, "" when it can.
type Reason string

// The closed set of reasons.
const (
	ReasonNoBody          Reason = "no_body"          // not a POST, or an empty body
	ReasonCompressed      Reason = "compressed"       // content-encoding other than identity
	ReasonMultipart       Reason = "multipart"        // multipart form, e.g. an audio upload
	ReasonContentType     Reason = "content_type"     // a content type other than JSON
	ReasonTooLarge        Reason = "too_large"        // body above Limits.Body
	ReasonNotJSON         Reason = "not_json"         // body is not one valid JSON object
	ReasonTooDeep         Reason = "too_deep"         // nesting above Limits.Depth
	ReasonBadUTF8         Reason = "bad_utf8"         // a string is not UTF-8
	ReasonLoneSurrogate   Reason = "lone_surrogate"   // a \u escape names half a surrogate pair
	ReasonNoModel         Reason = "no_model"         // model missing, empty, overlong or not a string
	ReasonUnsupportedPath Reason = "unsupported_path" // a path whose prompts are not read
	ReasonReportMode      Reason = "report_mode"      // vllm_xargs.kv_cache_report_mode: the engine re-announces blocks it already holds
	ReasonPromptLogprobs  Reason = "prompt_logprobs"  // log probabilities of the prompt are asked for: the engine computes all of it
	ReasonPromptEmbeds    Reason = "prompt_embeds"    // prompt given as embeddings
	ReasonTemplate        Reason = "chat_template"    // the request brings its own chat template
	ReasonTruncation      Reason = "truncation"       // truncate_prompt_tokens or truncation_side
	ReasonSuffix          Reason = "suffix"           // fill-in-the-middle completion, rendered inside the engine
	ReasonBadSalt         Reason = "bad_salt"         // cache_salt empty, overlong or not a string
	ReasonBadField        Reason = "bad_field"        // a field has a type that engines refuse
	ReasonNoPrompt        Reason = "no_prompt"        // prompt or messages missing or empty
	ReasonSeveralPrompts  Reason = "several_prompts"  // more than one prompt in one request
	ReasonBadTokens       Reason = "bad_tokens"       // a token id is not an integer in 0…2³²−1
	ReasonTooLong         Reason = "too_long"         // more token ids than Limits.PromptTokens
	ReasonMultimodal      Reason = "multimodal"       // a content part that is not text
)

// Reasons lists the closed set, in the order in which a request with several takes one.
func Reasons() []Reason {
	return []Reason{
		ReasonNoBody, ReasonCompressed, ReasonMultipart, ReasonContentType, ReasonTooLarge, ReasonNotJSON, ReasonTooDeep,
		ReasonBadUTF8, ReasonLoneSurrogate, ReasonNoModel, ReasonUnsupportedPath, ReasonReportMode, ReasonPromptLogprobs,
		ReasonPromptEmbeds, ReasonTemplate, ReasonTruncation, ReasonSuffix, ReasonBadSalt, ReasonBadField, ReasonNoPrompt, ReasonSeveralPrompts,
		ReasonBadTokens, ReasonTooLong, ReasonMultimodal,
	}
}

// Raw is the JSON text of one value, a span of the body. nil means that the field is absent, and for optional objects also null.
type Raw []byte

// Request is what a router reads of one inference request. With a Reason, only Kind, Model, Rendered and WriteText mean anything.
type Request struct {
	Kind   Kind
	Form   Form
	Reason Reason
	Model  string   // "" when not known
	Salt   string   // cache_salt
	Tokens []uint32 // prompt of form Tokens

	Prompt   Raw // JSON string of form Text
	Messages Raw // JSON array of form Messages

	// What else decides the tokens of a prompt, or is passed on to the engine's tokenizer unread.
	AddSpecialTokens     Raw
	AddGenerationPrompt  Raw
	ContinueFinalMessage Raw
	Tools                Raw
	Documents            Raw
	ReasoningEffort      Raw // JSON string
	TemplateKwargs       Raw // JSON object
	MediaIOKwargs        Raw
	MMProcessorKwargs    Raw

	thinkingSet bool     // TemplateKwargs has the key enable_thinking
	toolsOff    bool     // tool_choice is "none"
	renderOnly  bool     // see RenderOnly
	rendered    *Request // see Rendered
	whole       walk     // the body, at its messages or its one text
	unordered   bool     // the fields of some message do not stand in the order of WriteText
	inexact     *inexact // with a Reason that leaves a text to write, what it is written from
}

// inexact is a prompt that cannot be keyed exactly, as far as its text is known.
type inexact struct {
	Request
	prompts  Raw // JSON array of several prompts, or of more token ids than the limit
	suffix   Raw
	template Raw
}

// Limits bound what Parse reads. Zero fields take the default.
type Limits struct {
	Body         int // bytes of a body; default 32 MiB
	PromptTokens int // token ids of a prompt; default 262,144
	Depth        int // nesting of arrays and objects; default 256, at least 16, at most 1,024
}

const (
	defaultBody         = 32 << 20
	defaultPromptTokens = 262_144
	defaultDepth        = 256
	minDepth            = 16 // Parse itself descends to 6
	maxDepth            = 1024

	// maxText is the longest model name and cache salt, in bytes. vLLM took salts of any length before 0.30 and takes 128
	// characters since.
	maxText = 1024
)

func (l Limits) withDefaults() Limits {
	if l.Body <= 0 {
		l.Body = defaultBody
	}
	if l.PromptTokens <= 0 {
		l.PromptTokens = defaultPromptTokens
	}
	if l.Depth <= 0 {
		l.Depth = defaultDepth
	}
	l.Depth = min(max(l.Depth, minDepth), maxDepth)
	return l
}
