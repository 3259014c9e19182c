package stock

import (
	"encoding/json"
	"maps"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// fields are fields of a request's body, by name.
type fields map[string]any

// exchange is one request of the comparison.
type exchange struct {
	name   string // of the options
	method string
	path   string
	body   []byte
}

// common are options that completions and chats have in common, by name. Those with randomness have a seed.
var common = map[string]fields{
	"greedy":                    {},
	"default temperature, seed": {"temperature": nil, "seed": 1},
	"temperature, seed":         {"temperature": 0.8, "seed": 7},
	"top_p":                     {"temperature": 0.9, "top_p": 0.5, "seed": 2},
	"top_k":                     {"temperature": 0.9, "top_k": 5, "seed": 3},
	"min_p":                     {"temperature": 0.9, "min_p": 0.1, "seed": 4},
	"n":                         {"n": 2, "temperature": 0.8, "seed": 5},
	"frequency_penalty":         {"frequency_penalty": 0.7},
	"presence_penalty":          {"presence_penalty": 0.7},
	"repetition_penalty":        {"repetition_penalty": 1.2},
	"stop":                      {"stop": "a"},
	"stop list":                 {"stop": []string{"ma", "zo"}, "include_stop_str_in_output": true},
	"stop_token_ids":            {"stop_token_ids": []int{300, 301, 302}},
	"no ignore_eos":             {"ignore_eos": nil},
	"min_tokens":                {"min_tokens": 5, "ignore_eos": nil},
	"one token":                 {"max_tokens": 1},
	"no max_tokens":             {"max_tokens": nil, "stop": []string{"e", "i"}},
	"logit_bias":                {"logit_bias": map[string]int{"400": 30}},
	"allowed_token_ids":         {"allowed_token_ids": []int{400, 401, 402, 403}},
	"bad_words":                 {"bad_words": []string{"ba"}},
	"user":                      {"user": "someone"},
	"priority":                  {"priority": 0},
	"cache_salt":                {"cache_salt": "salt"},
	"skip_special_tokens":       {"skip_special_tokens": false},
	"return_token_ids":          {"return_token_ids": true},
	"return_token_ids off":      {"return_token_ids": false},
	"prompt_logprobs":           {"prompt_logprobs": 1, "stream": nil},
	"regex":                     {"structured_outputs": map[string]any{"regex": "[a-c]{4}"}},
	"choice":                    {"structured_outputs": map[string]any{"choice": []string{"yes", "no"}}},
	"JSON schema":               {"response_format": map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "x", "schema": map[string]any{"type": "object", "properties": map[string]any{"a": map[string]any{"type": "integer", "maximum": 9}}, "required": []string{"a"}}}}},
	"truncate_prompt_tokens":    {"truncate_prompt_tokens": 4},
	"unknown field":             {"no_such_field": map[string]any{"x": []int{1}}},
	"unknown model":             {"model": "other"},
	"no model":                  {"model": nil},
	"temperature < 0":           {"temperature": -1},
	"top_p > 1":                 {"top_p": 2},
	"max_tokens 0":              {"max_tokens": 0},
	"max_tokens < 0":            {"max_tokens": -3},
	"max_tokens too large":      {"max_tokens": 100_000},
	"max_tokens of text":        {"max_tokens": "many"},
	"n 0":                       {"n": 0},
	"duplicate usage":           {"stream_options": map[string]any{"include_usage": true}},
	"usage of each event":       {"stream_options": map[string]any{"include_usage": true, "continuous_usage_stats": true}},
	"no usage":                  {"stream_options": map[string]any{"include_usage": false}},
}

// ofCompletions are options of completions only.
var ofCompletions = map[string]fields{
	"logprobs":     {"logprobs": 2},
	"echo":         {"echo": true},
	"echo, usage":  {"echo": true, "stream_options": map[string]any{"include_usage": true}},
	"ids":          {"prompt": []int{5, 300, 301, 302, 303}},
	"two prompts":  {"prompt": []string{"ba ko", "lu mi"}},
	"no prompt":    {"prompt": nil},
	"empty prompt": {"prompt": ""},
	"suffix":       {"suffix": "x"},
	"ids too high": {"prompt": []int{5, 99999}},
}

// ofChats are options of chats only.
var ofChats = map[string]fields{
	"logprobs":               {"logprobs": true, "top_logprobs": 2},
	"max_completion_tokens":  {"max_tokens": nil, "max_completion_tokens": 7},
	"no generation prompt":   {"add_generation_prompt": false},
	"echo":                   {"echo": true},
	"system message":         {"messages": []fields{{"role": "system", "content": "be brief"}, {"role": "user", "content": "ba ko"}}},
	"three turns":            {"messages": []fields{{"role": "user", "content": "ba"}, {"role": "assistant", "content": "ko"}, {"role": "user", "content": "lu"}}},
	"continue_final_message": {"messages": []fields{{"role": "user", "content": "ba"}, {"role": "assistant", "content": "ko"}}, "continue_final_message": true, "add_generation_prompt": false},
	"parts":                  {"messages": []fields{{"role": "user", "content": []fields{{"type": "text", "text": "ba ko"}}}}},
	"tools, none":            {"tools": tools, "tool_choice": "none"},
	"tools, auto":            {"tools": tools, "tool_choice": "auto"},
	"tools, named":           {"tools": tools, "tool_choice": fields{"type": "function", "function": fields{"name": "f"}}},
	"no messages":            {"messages": nil},
	"empty messages":         {"messages": []fields{}},
	"unknown role":           {"messages": []fields{{"role": 7, "content": "x"}}},
}

var tools = []fields{{"type": "function", "function": fields{"name": "f", "parameters": fields{"type": "object", "properties": fields{"a": fields{"type": "integer", "maximum": 9}}, "required": []string{"a"}}}}}

// exchanges returns the requests of the comparison: every option with prompts of several lengths, streamed and not,
// and other endpoints.
func exchanges() (out []exchange) {
	for _, size := range []int{12, 300, 3000} {
		for _, stream := range []bool{false, true} {
			for name, more := range all(common, ofCompletions) {
				base := fields{"prompt": prompt(size, size)}
				out = append(out, generation(name, "/v1/completions", base, more, stream))
			}
			for name, more := range all(common, ofChats) {
				base := fields{"messages": []fields{{"role": "user", "content": prompt(size, size)}}}
				out = append(out, generation(name, "/v1/chat/completions", base, more, stream))
			}
		}
	}
	text := func(name, method, path, body string) {
		out = append(out, exchange{name: name, method: method, path: path, body: []byte(body)})
	}
	for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
		text("no JSON", "POST", path, `{"model": "tiny", `)
		text("a list", "POST", path, `[1]`)
		text("empty", "POST", path, ``)
		text("GET", "GET", path, ``)
	}
	text("render", "POST", "/v1/completions/render", `{"model": "tiny", "prompt": "ba ko"}`)
	text("render", "POST", "/v1/chat/completions/render", `{"model": "tiny", "messages": [{"role": "user", "content": "ba"}]}`)
	text("models", "GET", "/v1/models", ``)
	text("version", "GET", "/version", ``)
	text("health", "GET", "/health", ``)
	text("tokenize", "POST", "/tokenize", `{"model": "tiny", "prompt": "ba ko lu"}`)
	text("tokenize a chat", "POST", "/tokenize", `{"model": "tiny", "messages": [{"role": "user", "content": "ba"}]}`)
	text("detokenize", "POST", "/detokenize", `{"model": "tiny", "tokens": [300, 301]}`)
	text("responses", "POST", "/v1/responses", `{"model": "tiny", "input": "ba ko", "max_output_tokens": 6, "temperature": 0}`)
	text("messages", "POST", "/v1/messages", `{"model": "tiny", "max_tokens": 6, "temperature": 0, "messages": [{"role": "user", "content": "ba"}]}`)
	text("embeddings", "POST", "/v1/embeddings", `{"model": "tiny", "input": "ba"}`)
	return out
}

// all returns the union of two sets of options.
func all(a, b map[string]fields) map[string]fields {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// generation returns a request for text. Fields of more replace those of base; nil removes them.
func generation(name, path string, base, more fields, stream bool) exchange {
	body := fields{"model": model, "max_tokens": 12, "temperature": 0, "ignore_eos": true}
	maps.Copy(body, base)
	if stream {
		body["stream"] = true
	}
	maps.Copy(body, more)
	maps.DeleteFunc(body, func(_ string, v any) bool { return v == nil })
	return exchange{name: name, method: "POST", path: path, body: testkit.Must(json.Marshal(body))}
}
