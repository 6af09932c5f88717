package enginesim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
)

// loraRequest is the body of /v1/load_lora_adapter and /v1/unload_lora_adapter.
type loraRequest struct {
	Name string `json:"lora_name"`
	Path string `json:"lora_path"`
}

// all are the adapters at this time. The slice is not changed.
func (e *Engine) all() []*adapter {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.adapters
}

// load takes an adapter in, as vLLM does with VLLM_ALLOW_RUNTIME_LORA_UPDATING.
func (e *Engine) load(w http.ResponseWriter, _ *http.Request, body []byte) {
	var l loraRequest
	if json.Unmarshal(body, &l) != nil || l.Name == "" || l.Path == "" {
		fail(w, &apiError{Status: http.StatusBadRequest, Type: "InvalidUserInput", Message: "Both 'lora_name' and 'lora_path' must be provided."})
		return
	}
	e.mu.Lock()
	taken := slices.Contains(e.opts.Models, l.Name) || slices.ContainsFunc(e.adapters, func(a *adapter) bool { return a.name == l.Name })
	if !taken {
		e.loaded++
		e.adapters = append(slices.Clone(e.adapters), &adapter{id: e.loaded, name: l.Name, path: l.Path})
	}
	e.mu.Unlock()
	if taken {
		fail(w, &apiError{
			Status: http.StatusBadRequest, Type: "InvalidUserInput",
			Message: fmt.Sprintf("The lora adapter '%s' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True.", l.Name),
		})
		return
	}
	fmt.Fprintf(w, "Success: LoRA adapter '%s' added successfully.", l.Name)
}

// unload drops an adapter. Its blocks stay in the cache.
func (e *Engine) unload(w http.ResponseWriter, _ *http.Request, body []byte) {
	var l loraRequest
	if json.Unmarshal(body, &l) != nil || l.Name == "" {
		fail(w, &apiError{Status: http.StatusBadRequest, Type: "InvalidUserInput", Message: "'lora_name' needs to be provided to unload a LoRA adapter."})
		return
	}
	e.mu.Lock()
	left := slices.DeleteFunc(slices.Clone(e.adapters), func(a *adapter) bool { return a.name == l.Name })
	known := len(left) < len(e.adapters)
	e.adapters = left
	e.mu.Unlock()
	if !known {
		fail(w, &apiError{Status: http.StatusNotFound, Type: "NotFoundError", Message: fmt.Sprintf("The lora adapter '%s' cannot be found.", l.Name)})
		return
	}
	fmt.Fprintf(w, "Success: LoRA adapter '%s' removed successfully.", l.Name)
}
