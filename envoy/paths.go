package envoy

import (
	"regexp"
	"strings"
)

// modelsPath lists the models of an engine: a GET that any endpoint of the pool answers alike, so no decision is made for it.
const modelsPath = "/v1/models"

// InferencePaths are the paths that are routed to engines unless Options.AllPaths is set, beside GET /v1/models:
//
//	/v1/completions             OpenAI completions                     vLLM, SGLang
//	/v1/chat/completions        OpenAI chat                            vLLM, SGLang
//	/v1/responses               OpenAI responses, stateless use        vLLM, SGLang
//	/v1/messages                Anthropic messages                     vLLM, SGLang
//	/v1/messages/count_tokens   their token count                      vLLM, SGLang
//	/v1/embeddings              OpenAI embeddings                      vLLM, SGLang
//	/v1/score                   pair scores                            vLLM, SGLang
//	/v1/rerank, /v2/rerank      Jina and Cohere reranking              vLLM, SGLang (v1)
//	/v1/audio/transcriptions    OpenAI speech to text                  vLLM, SGLang
//	/v1/audio/translations      the same into English                  vLLM
//	/generate                   SGLang's own                           SGLang
//
// Left out are paths that vLLM serves without asking for its API key (/pooling, /classify, /score and /rerank without /v1,
// /tokenize, /invocations), state that lives in one replica (/v1/responses/{id}), and everything that manages an engine.
func InferencePaths() []string {
	return []string{
		"/v1/completions",
		"/v1/chat/completions",
		"/v1/responses",
		"/v1/messages",
		"/v1/messages/count_tokens",
		"/v1/embeddings",
		"/v1/score",
		"/v1/rerank",
		"/v2/rerank",
		"/v1/audio/transcriptions",
		"/v1/audio/translations",
		"/generate",
	}
}

// pathRegex matches prefix followed by one of paths, whole. Envoy matches it against the path without its query.
func pathRegex(prefix string, paths []string) string {
	quoted := make([]string, len(paths))
	for i, p := range paths {
		quoted[i] = regexp.QuoteMeta(p)
	}
	return regexp.QuoteMeta(prefix) + "(" + strings.Join(quoted, "|") + ")"
}
