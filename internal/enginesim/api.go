package enginesim

import "encoding/json"

// The bodies of requests and replies, as vLLM 0.32 reads and writes them. Fields that are always null there, because the
// simulation has no such thing, are of type null.

type null struct{}

func (null) MarshalJSON() ([]byte, error) { return []byte("null"), nil }

// requestBody holds what the simulation reads of /v1/completions, /v1/chat/completions and /tokenize. Other fields are
// ignored.
type requestBody struct {
	Model  string          `json:"model"`
	Prompt json.RawMessage `json:"prompt"`

	Messages             json.RawMessage   `json:"messages"`
	Tools                []json.RawMessage `json:"tools"`
	Documents            []json.RawMessage `json:"documents"`
	ReasoningEffort      string            `json:"reasoning_effort"`
	ChatTemplate         string            `json:"chat_template"`
	ChatTemplateKwargs   templateKwargs    `json:"chat_template_kwargs"`
	AddGenerationPrompt  *bool             `json:"add_generation_prompt"`
	ContinueFinalMessage bool              `json:"continue_final_message"`

	CacheSalt            *string `json:"cache_salt"`
	TruncatePromptTokens *int    `json:"truncate_prompt_tokens"`
	MaxTokens            *int    `json:"max_tokens"`
	MaxCompletionTokens  *int    `json:"max_completion_tokens"`
	IgnoreEOS            bool    `json:"ignore_eos"`
	N                    *int    `json:"n"`
	Stream               bool    `json:"stream"`
	StreamOptions        struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	ReturnTokenIDs  bool `json:"return_token_ids"`
	ReturnTokenStrs bool `json:"return_token_strs"`
}

type completionReply struct {
	ID                string             `json:"id"`
	Object            string             `json:"object"`
	Created           int64              `json:"created"`
	Model             string             `json:"model"`
	Choices           []completionChoice `json:"choices"`
	ServiceTier       null               `json:"service_tier"`
	SystemFingerprint string             `json:"system_fingerprint"`
	Usage             usage              `json:"usage"`
	KVTransferParams  null               `json:"kv_transfer_params"`
	Metrics           null               `json:"metrics"`
}

type completionChoice struct {
	Index          int      `json:"index"`
	Text           string   `json:"text"`
	Logprobs       null     `json:"logprobs"`
	FinishReason   finish   `json:"finish_reason"`
	StopReason     null     `json:"stop_reason"`
	TokenIDs       []uint32 `json:"token_ids"`
	PromptLogprobs null     `json:"prompt_logprobs"`
	PromptTokenIDs []uint32 `json:"prompt_token_ids"`
}

type chatReply struct {
	ID                string       `json:"id"`
	Object            string       `json:"object"`
	Created           int64        `json:"created"`
	Model             string       `json:"model"`
	Choices           []chatChoice `json:"choices"`
	ServiceTier       null         `json:"service_tier"`
	SystemFingerprint string       `json:"system_fingerprint"`
	Usage             usage        `json:"usage"`
	PromptLogprobs    null         `json:"prompt_logprobs"`
	PromptTokenIDs    []uint32     `json:"prompt_token_ids"`
	KVTransferParams  null         `json:"kv_transfer_params"`
	Metrics           null         `json:"metrics"`
}

type chatChoice struct {
	Index   int `json:"index"`
	Message struct {
		Role      string `json:"role"`
		Content   string `json:"content"`
		Refusal   null   `json:"refusal"`
		Reasoning null   `json:"reasoning"`
	} `json:"message"`
	Logprobs     null     `json:"logprobs"`
	FinishReason finish   `json:"finish_reason"`
	StopReason   null     `json:"stop_reason"`
	TokenIDs     []uint32 `json:"token_ids"`
}

type usage struct {
	PromptTokens            int          `json:"prompt_tokens"`
	TotalTokens             int          `json:"total_tokens"`
	CompletionTokens        int          `json:"completion_tokens"`
	PromptTokensDetails     usageDetails `json:"prompt_tokens_details"`
	CompletionTokensDetails null         `json:"completion_tokens_details"`
}

// usageDetails counts what came from the prefix cache. Only chat replies fill the second.
type usageDetails struct {
	CachedTokens       int  `json:"cached_tokens"`
	CreatedCacheTokens *int `json:"created_cache_tokens"`
	MultimodalTokens   null `json:"multimodal_tokens"`
}

// chunk is one server-sent event of either kind of stream. The last chunk has the usage and no choices.
type chunk struct {
	ID                string       `json:"id"`
	Object            string       `json:"object"`
	Created           int64        `json:"created"`
	Model             string       `json:"model"`
	Choices           []any        `json:"choices"`
	Usage             *streamUsage `json:"usage,omitempty"`
	SystemFingerprint string       `json:"system_fingerprint,omitempty"`
	*chatStart
}

// chatStart is in the first chunk of a chat stream only.
type chatStart struct {
	PromptTokenIDs []uint32 `json:"prompt_token_ids"`
	PromptText     null     `json:"prompt_text"`
}

type completionDelta struct {
	Index          int      `json:"index"`
	Text           string   `json:"text"`
	Logprobs       null     `json:"logprobs"`
	FinishReason   *finish  `json:"finish_reason"`
	StopReason     null     `json:"stop_reason"`
	PromptTokenIDs []uint32 `json:"prompt_token_ids"`
	TokenIDs       []uint32 `json:"token_ids"`
}

type chatDelta struct {
	Index        int         `json:"index"`
	Delta        chatContent `json:"delta"`
	Logprobs     null        `json:"logprobs"`
	FinishReason *finish     `json:"finish_reason"`
	StopReason   *null       `json:"stop_reason,omitempty"`
	TokenIDs     *[]uint32   `json:"token_ids,omitempty"`
}

type chatContent struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type streamUsage struct {
	PromptTokens        int `json:"prompt_tokens"`
	TotalTokens         int `json:"total_tokens"`
	CompletionTokens    int `json:"completion_tokens"`
	PromptTokensDetails struct {
		CachedTokens       int  `json:"cached_tokens"`
		CreatedCacheTokens *int `json:"created_cache_tokens,omitempty"`
	} `json:"prompt_tokens_details"`
}

type tokenizeReply struct {
	Count       int      `json:"count"`
	MaxModelLen int      `json:"max_model_len"`
	Tokens      []uint32 `json:"tokens"`
	TokenStrs   []string `json:"token_strs"`
}

type modelList struct {
	Object string      `json:"object"`
	Data   []modelCard `json:"data"`
}

type modelCard struct {
	ID          string  `json:"id"`
	Object      string  `json:"object"`
	Created     int64   `json:"created"`
	OwnedBy     string  `json:"owned_by"`
	Root        string  `json:"root"`
	Parent      *string `json:"parent"`
	MaxModelLen *int    `json:"max_model_len"`
}

// eventSource is one publisher of /kv_event_sources, which vLLM has from 0.31 on.
type eventSource struct {
	Enabled        bool    `json:"enable_kv_cache_events"`
	Publisher      string  `json:"publisher"`
	Endpoint       string  `json:"endpoint"`
	ReplayEndpoint *string `json:"replay_endpoint"`
	BufferSteps    int     `json:"buffer_steps"`
	HWM            int     `json:"hwm"`
	MaxQueueSize   int     `json:"max_queue_size"`
	Topic          string  `json:"topic"`
}

// apiError is a refused request.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Status  int     `json:"code"`
}
