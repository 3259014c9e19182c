package emulator

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/gjson"

	kvapi "github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/kvport"
)

// Limits of a request.
const (
	maxBody  = 64 << 20 // bytes; a prompt of 131072 token ids is under 1 MiB
	maxDepth = 64       // nested JSON; gjson recurses, so this protects the stack
	maxStops = 64       // stop strings, and stop tokens
)

// api is one of the two generating endpoints.
type api int

const (
	completions api = iota
	chat
)

// request is a decoded body. Its token ids are within the vocabulary.
type request struct {
	model     string
	text      string        // the prompt, unless ids are given
	ids       []model.Token // the prompt as ids
	messages  []message
	maxTokens int  // 0: not given
	unlimited bool // max_tokens is null: as many as the engine has room for
	minTokens int
	ignoreEOS bool
	stops     []string
	stopIDs   []model.Token
	saltText  string // cache_salt
	salt      uint64 // hash of it; 0: none

	transfer    kvport.Params
	reservation string // of the block table, in place of a prompt
	from        int    // ids from this index on are output of an earlier leg; 0: none

	stream          bool
	usage           bool // a last chunk with usage
	continuousUsage bool // usage in every chunk
	tokenIDs        bool
	includeStop     bool

	logprobs bool // of the tokens of the answer
	tools    tools
	call     string       // the function that the answer calls; "" for none
	format   gjson.Result // response_format; zero: text
	skeleton *skeleton    // the JSON around the text; nil: none
}

// message is one turn of a chat.
type message struct{ role, content string }

// decode decodes a body of either endpoint. It never panics. Its errors name the field.
func decode(a api, body []byte) (request, *apiError) {
	var r request
	root, err := parseObject(body)
	if err != nil {
		return r, err
	}
	root.ForEach(func(key, v gjson.Result) bool {
		err = r.field(a, key.Str, v)
		return err == nil
	})
	if err != nil {
		return r, err
	}
	switch {
	case r.reservation != "" && (r.text != "" || len(r.ids) > 0 || len(r.messages) > 0):
		return r, invalid("kv_transfer_params", "kv_transfer_params.cascade_reservation stands for the prompt: prompt, messages and prompt_token_ids must be empty or absent")
	case r.reservation != "": // the prompt is in the blocks
	case a == completions && r.text == "" && len(r.ids) == 0:
		return r, invalid("prompt", "prompt is required and must not be empty")
	case a == chat && len(r.messages) == 0 && len(r.ids) == 0:
		return r, invalid("messages", "messages is required and must not be empty")
	}
	if !r.stream && (r.usage || r.continuousUsage) {
		return r, invalid("stream_options", "stream_options needs stream=true")
	}
	err = r.shapeAnswer()
	return r, err
}

// shapeAnswer decides whether the answer is a call of a function, JSON or plain text.
func (r *request) shapeAnswer() (err *apiError) {
	var last message
	if n := len(r.messages); n > 0 {
		last = r.messages[n-1]
	}
	function, calls, err := r.tools.called(last)
	switch {
	case err != nil:
	case calls:
		r.call, r.skeleton = strings.Clone(function.Get("name").Str), jsonObject()
		if schema := function.Get("parameters"); schema.Exists() {
			r.skeleton, err = newSkeleton("tools", schema)
		}
	case r.format.Get("type").Str == "json_object":
		r.skeleton = jsonObject()
	case r.format.Get("type").Str == "json_schema":
		r.skeleton, err = newSkeleton("response_format", r.format.Get("json_schema.schema"))
	}
	r.format, r.tools.list = gjson.Result{}, nil // they refer to the body
	return err
}

// parseObject checks that a body is one JSON object that is safe to parse.
func parseObject(body []byte) (gjson.Result, *apiError) {
	if depth(body) > maxDepth {
		return gjson.Result{}, malformed("JSON decode error: nested more than %d levels deep", maxDepth)
	}
	if !utf8.Valid(body) || !gjson.ValidBytes(body) {
		return gjson.Result{}, malformed("JSON decode error: the body is not valid JSON in UTF-8")
	}
	root := gjson.ParseBytes(body)
	if !root.IsObject() {
		return root, malformed("the body must be a JSON object")
	}
	return root, nil
}

// depth returns the nesting depth of brackets outside of strings, in valid or invalid JSON.
func depth(body []byte) int {
	now, most, quoted := 0, 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			now++
			most = max(most, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return most
}

// field decodes one top-level field. It ignores unknown fields, as vLLM does.
func (r *request) field(a api, key string, v gjson.Result) (err *apiError) {
	if v.Type == gjson.Null {
		r.unlimited = r.unlimited || key == "max_tokens"
		return nil
	}
	switch key {
	case "model":
		r.model, err = str(key, v)
	case "prompt":
		if a == completions {
			err = r.prompt(v)
		}
	case "messages":
		if a == chat {
			err = r.conversation(v)
		}
	case "kv_transfer_params":
		err = r.transferParams(a, v)
	case "max_tokens", "max_completion_tokens":
		var n int
		if n, err = integer(key, v, 1); err == nil && (key != "max_tokens" || r.maxTokens == 0) {
			r.maxTokens = n
		}
	case "min_tokens":
		r.minTokens, err = integer(key, v, 0)
	case "ignore_eos":
		r.ignoreEOS, err = boolean(key, v)
	case "stop":
		r.stops, err = stops(v)
	case "stop_token_ids":
		if r.stopIDs, err = tokens(key, v); err == nil && len(r.stopIDs) > maxStops {
			err = invalid(key, "at most %d stop tokens", maxStops)
		}
	case "include_stop_str_in_output":
		r.includeStop, err = boolean(key, v)
	case "stream":
		r.stream, err = boolean(key, v)
	case "stream_options":
		if !v.IsObject() {
			return invalid(key, "stream_options must be an object")
		}
		if u := v.Get("include_usage"); u.Exists() && u.Type != gjson.Null {
			if r.usage, err = boolean("stream_options.include_usage", u); err != nil {
				return err
			}
		}
		if u := v.Get("continuous_usage_stats"); u.Exists() && u.Type != gjson.Null {
			r.continuousUsage, err = boolean("stream_options.continuous_usage_stats", u)
			r.continuousUsage = r.continuousUsage && r.usage
		}
	case "return_token_ids":
		r.tokenIDs, err = boolean(key, v)
	case "logprobs": // a number of alternatives for completions, a switch for chat
		r.logprobs = v.Type == gjson.Number || v.Bool()
	case "top_logprobs":
		_, err = integer(key, v, 0)
	case "tools":
		if a == chat {
			err = r.tools.decodeTools(v)
		}
	case "tool_choice":
		err = r.tools.decodeChoice(v)
	case "response_format":
		if kind := v.Get("type").Str; kind != "text" && kind != "json_object" && kind != "json_schema" {
			return invalid(key, "response_format.type must be text, json_object or json_schema")
		}
		r.format = v
	case "cache_salt":
		var salt string
		if salt, err = str(key, v); err == nil && salt == "" {
			err = invalid(key, "cache_salt must not be empty")
		}
		r.saltText, r.salt = salt, xxhash.Sum64String(salt)
	default:
		err = uncovered(key, v)
	}
	return err
}

// transferParams decodes kv_transfer_params and ignores fields that other engines define.
func (r *request) transferParams(a api, v gjson.Result) (err *apiError) {
	if !v.IsObject() {
		return invalid("kv_transfer_params", "kv_transfer_params must be an object")
	}
	v.ForEach(func(key, v gjson.Result) bool {
		at := "kv_transfer_params." + key.Str
		switch {
		case v.Type == gjson.Null:
		case key.Str == "prompt_token_ids" && a == chat:
			// A chat continues from ids this way: without template and tokenising.
			r.ids, err = tokens(at, v)
		case key.Str == "cascade_reservation":
			if r.reservation, err = str(at, v); err == nil && (r.reservation == "" || len(r.reservation) > kvapi.MaxName) {
				err = invalid(at, "%s must have 1 to %d bytes, not %d", at, kvapi.MaxName, len(r.reservation))
			}
		case key.Str == "cascade_prompt":
			r.from, err = integer(at, v, 0)
		default:
			if bad := r.transfer.Field(key.Str, v); bad != nil {
				err = invalid(at, "%s %v", at, bad)
			}
		}
		return err == nil
	})
	return err
}

// uncovered rejects fields that would change the answer and are not emulated, and checks the
// types of sampling parameters that have no effect.
func uncovered(key string, v gjson.Result) *apiError {
	switch key {
	case "n", "best_of":
		n, err := integer(key, v, 1)
		if err != nil {
			return err
		}
		if n != 1 {
			return invalid(key, "%s must be 1: one choice per request is all this engine makes", key)
		}
	case "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "seed", "length_penalty":
		if v.Type != gjson.Number {
			return invalid(key, "%s must be a number", key)
		}
	case "echo", "use_beam_search", "continue_final_message":
		if on, err := boolean(key, v); err != nil || on {
			return invalid(key, "%s is not supported by this engine", key)
		}
	case "add_generation_prompt":
		if on, err := boolean(key, v); err != nil || !on {
			return invalid(key, "%s=false is not supported by this engine", key)
		}
	case "prompt_logprobs", "suffix", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "logit_bias", "allowed_token_ids", "bad_words", "prompt_embeds", "truncate_prompt_tokens":
		return invalid(key, "%s is not supported by this engine", key)
	}
	return nil
}

// prompt decodes a text, a list of ids, or a list with one of either.
func (r *request) prompt(v gjson.Result) (err *apiError) {
	switch {
	case v.Type == gjson.String:
		r.text = v.Str
		return nil
	case !v.IsArray():
		return invalid("prompt", "prompt must be a string or a list of token ids")
	}
	first := v.Get("0")
	if first.Type == gjson.String || first.IsArray() {
		if v.Get("#").Int() != 1 {
			return invalid("prompt", "prompt must be one prompt: lists of several are not supported by this engine")
		}
		if first.Type == gjson.String {
			r.text = first.Str
			return nil
		}
		v = first
	}
	r.ids, err = tokens("prompt", v)
	return err
}

// tokens parses a list of ids without a generic decoder: prompts of 100,000 ids are common, and
// a generic decoder takes as long for them as the rest of the request.
func tokens(key string, v gjson.Result) ([]model.Token, *apiError) {
	if !v.IsArray() {
		return nil, invalid(key, "%s must be a list of token ids", key)
	}
	raw := v.Raw[1 : len(v.Raw)-1] // valid JSON: it has both brackets
	ids := make([]model.Token, 0, 1+strings.Count(raw, ","))
	for raw = skipSpace(raw); raw != ""; {
		id, n := 0, 0
		for n < len(raw) && n < 9 && raw[n] >= '0' && raw[n] <= '9' {
			id = id*10 + int(raw[n]-'0')
			n++
		}
		raw = skipSpace(raw[n:])
		if n == 0 || raw != "" && raw[0] != ',' {
			return nil, invalid(key, "%s, element %d: must be a token id, a whole number", key, len(ids))
		}
		if id >= int(model.VocabularySize) {
			return nil, invalid(key, "%s, element %d: token id %d is out of vocabulary", key, len(ids), id)
		}
		ids = append(ids, model.Token(id))
		if raw != "" {
			raw = skipSpace(raw[1:])
		}
	}
	return ids, nil
}

func skipSpace(s string) string { return strings.TrimLeft(s, " \t\r\n") }

// conversation decodes chat messages: text, or parts that are all text.
func (r *request) conversation(v gjson.Result) *apiError {
	if !v.IsArray() {
		return invalid("messages", "messages must be a list")
	}
	var err *apiError
	v.ForEach(func(_, m gjson.Result) bool {
		at := "messages." + strconv.Itoa(len(r.messages))
		role := m.Get("role")
		if !m.IsObject() || role.Type != gjson.String || role.Str == "" {
			err = invalid(at, "%s: must be an object with a role", at)
			return false
		}
		turn := message{role: role.Str}
		switch content := m.Get("content"); {
		case content.Type == gjson.String:
			turn.content = content.Str
		case content.IsArray():
			content.ForEach(func(_, part gjson.Result) bool {
				text := part.Get("text")
				if part.Get("type").Str != "text" || text.Type != gjson.String {
					err = invalid(at, "%s.content: only parts of type text are supported", at)
				}
				turn.content += text.Str
				return err == nil
			})
		case content.Type != gjson.Null:
			err = invalid(at, "%s.content: must be a string or a list of parts", at)
		}
		r.messages = append(r.messages, turn)
		return err == nil
	})
	return err
}

func stops(v gjson.Result) ([]string, *apiError) {
	if v.Type == gjson.String {
		v = gjson.Parse("[" + v.Raw + "]")
	}
	if !v.IsArray() {
		return nil, invalid("stop", "stop must be a string or a list of strings")
	}
	var list []string
	var err *apiError
	v.ForEach(func(_, s gjson.Result) bool {
		switch {
		case s.Type != gjson.String || s.Str == "":
			err = invalid("stop", "stop: every element must be a string that is not empty")
		case len(list) == maxStops:
			err = invalid("stop", "at most %d stop strings", maxStops)
		}
		list = append(list, strings.Clone(s.Str))
		return err == nil
	})
	return list, err
}

func str(key string, v gjson.Result) (string, *apiError) {
	if v.Type != gjson.String {
		return "", invalid(key, "%s must be a string", key)
	}
	// Without the clone a short name would keep the whole body in memory.
	return strings.Clone(v.Str), nil
}

func boolean(key string, v gjson.Result) (bool, *apiError) {
	if !v.IsBool() {
		return false, invalid(key, "%s must be true or false", key)
	}
	return v.Bool(), nil
}

// integer decodes an integer of at least low; 3.0 counts as an integer.
func integer(key string, v gjson.Result, low int) (int, *apiError) {
	if v.Type != gjson.Number || v.Num != math.Trunc(v.Num) || math.Abs(v.Num) > 1<<31 {
		return 0, invalid(key, "%s must be a whole number", key)
	}
	if int(v.Num) < low {
		return 0, invalid(key, "%s must be at least %d, got %d", key, low, int(v.Num))
	}
	return int(v.Num), nil
}
