package openai

import (
	"math"
	"strings"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/tidwall/gjson"
)

// Request is a client's body, read once.
type Request struct {
	Endpoint  Endpoint
	Model     string
	MaxOutput policies.Tokens // max_tokens or max_completion_tokens, 0 when the client set none
	MinOutput policies.Tokens // min_tokens, 0 when the client set none
	// Features is what ties the request to one engine. A seed counts unless the
	// client says that decoding is greedy.
	Features policies.Features
	// Stream, Usage and WantsIDs tell whether the client itself asked for a stream,
	// for usage at its end and for token ids.
	Stream, WantsUsage, WantsIDs bool

	body        []byte
	members     []member
	options     span // stream_options' value, if an object
	hasWithheld bool // some member must not reach the engine
	logprobs    bool // the answer has log probabilities
	tied        bool // something that is no feature makes a second engine answer otherwise
	// The last max_tokens and max_completion_tokens.
	maxTokens, maxCompletion policies.Tokens
}

// member is one top-level "key": value of the body.
type member struct {
	span
	name  string // as the engine reads it, escapes resolved; "" when no edit cares
	value span
}

// withheld are the fields that only the fleet itself may send to an engine:
// they name other engines' memory.
var withheld = [...]string{"kv_transfer_params", "ec_transfer_params"}

func isWithheld(name string) bool { return name == withheld[0] || name == withheld[1] }

// Parse reads a body; the Request refers to it. The error says what is wrong
// with the JSON text and where, and is fit for the client. Fields that an
// engine would refuse are left for the engine to refuse.
func Parse(e Endpoint, body []byte) (Request, error) {
	r := Request{Endpoint: e, body: body}
	if err := checkObject(body); err != nil {
		return r, err
	}
	r.members = make([]member, 0, 16)
	greedy := false
	// Of equal names the last one counts, as in the engines' readers; each
	// occurrence is seen, because a forged first one must not hide a second.
	eachMember(body, span{0, len(body)}, func(name []byte, whole, value span) bool {
		m := member{span: whole, value: value}
		if string(name) == "temperature" {
			v := gjson.Parse(unsafeString(value.of(body)))
			greedy = v.Type == gjson.Number && v.Num == 0
		}
		if r.field(unsafeString(name), value) {
			m.name = unsafeString(name)
		}
		r.members = append(r.members, m)
		return true
	})
	if greedy {
		r.Features &^= policies.Seed
	}
	if r.MaxOutput = r.maxCompletion; r.MaxOutput == 0 {
		r.MaxOutput = r.maxTokens
	}
	return r, nil
}

// field takes one member in and reports whether an edit may concern it.
func (r *Request) field(name string, value span) (edited bool) {
	switch name { // the large ones, which no other reader needs to see
	case "prompt":
		r.Features |= promptFeature(r.body, value)
		return true
	case "messages":
		r.Features |= messagesFeature(r.body, value)
		return true
	}
	v := gjson.Parse(unsafeString(value.of(r.body)))
	switch name {
	case "model":
		r.Model = strings.Clone(v.Str)
	case "stream":
		r.Stream = r.boolean(v)
		return true
	case "stream_options":
		r.options, r.WantsUsage = span{}, false
		switch {
		case v.IsObject():
			r.options = value
			v.ForEach(func(k, o gjson.Result) bool {
				if k.Str == "include_usage" {
					r.WantsUsage = r.boolean(o)
				}
				return true
			})
		case v.Type != gjson.Null:
			r.Features |= policies.Unreadable
		}
		return true
	case "return_token_ids":
		r.WantsIDs = r.boolean(v)
		return true
	case "kv_transfer_params", "ec_transfer_params":
		r.hasWithheld = true
		return true
	case "vllm_xargs":
		// The engine adds these to the same table as kv_transfer_params.
		if v.IsObject() {
			v.ForEach(func(k, _ gjson.Result) bool {
				r.hasWithheld = r.hasWithheld || isWithheld(k.Str)
				r.tied = true // arguments of somebody's own logits processor
				return true
			})
			return true
		}
	case "logprobs":
		r.logprobs = v.Type != gjson.Null && v.Type != gjson.False
		r.tied = r.tied || r.logprobs && r.Endpoint == Completions // text_offset counts from the leg's first text
	case "max_tokens":
		r.maxTokens = r.count(v)
		return true
	case "max_completion_tokens":
		r.maxCompletion = r.count(v)
		r.tied = r.tied || r.Endpoint == Completions && v.Type != gjson.Null // some engines read it there
		return true
	case "min_tokens":
		r.MinOutput = r.count(v)
		r.Features |= featureOf(name, v)
		return true
	case "request_id", "truncate_prompt_tokens", "chat_template", "documents", "add_generation_prompt", "continue_final_message":
		return true
	case "logits_processors":
		r.tied = r.tied || v.Type != gjson.Null
	default:
		r.Features |= featureOf(name, v)
	}
	return false
}

// boolean reads a flag; engines also take "true" and 1, which nobody else may rely on.
func (r *Request) boolean(v gjson.Result) bool {
	if v.Type != gjson.True && v.Type != gjson.False && v.Type != gjson.Null {
		r.Features |= policies.Unreadable
	}
	return v.Type == gjson.True
}

// count reads a number of tokens, 0 for none. Engines also take "7" and 7.0.
func (r *Request) count(v gjson.Result) policies.Tokens {
	if v.Type != gjson.Number || v.Num != math.Trunc(v.Num) {
		r.tied = r.tied || v.Type != gjson.Null
	}
	if v.Type != gjson.Number || v.Num < 1 {
		return 0
	}
	return policies.Tokens(min(v.Num, 1<<53))
}

// Streamable reports whether the engine's events for this request are ones
// that a front understands, given that the client asked for a stream.
func (r *Request) Streamable() bool { return r.Stream && !r.Features.Has(policies.Unreadable) }

// Assemblable reports whether an unstreamed answer to this request can be put
// together from a stream, byte for byte. A request with stream_options but no
// stream is one that engines refuse, and must keep refusing.
func (r *Request) Assemblable() bool {
	return !r.Stream && r.options.absent() && !r.logprobs && !r.Features.Has(exactOnly)
}

// AllowsIDs reports whether token ids may be asked for: an engine that echoes
// the prompt leaves it out as soon as ids are wanted.
func (r *Request) AllowsIDs() bool { return !r.Features.Has(policies.Echo | policies.Unreadable) }

// AllowsUsage reports whether usage may be asked for and taken out again. With
// several choices it may not: the fingerprint that an engine then moves to the
// usage event could not be put back where it belongs.
func (r *Request) AllowsUsage() bool {
	return !r.Features.Has(policies.Choices | policies.Prompts | policies.Unreadable)
}

// PlainBody returns the body for an engine with nothing changed but what must not
// reach one. It returns the client's bytes when that is nothing.
func (r *Request) PlainBody() []byte {
	if !r.hasWithheld {
		return r.body
	}
	return r.rebuild(nil)
}

// StreamBody returns the body for an engine as a stream, with token ids and
// usage asked for where that is allowed.
func (r *Request) StreamBody() []byte {
	var add []byte
	if !r.Stream {
		add = append(add, `"stream":true`...)
	}
	if r.AllowsIDs() && !r.WantsIDs {
		add = append(add, `,"return_token_ids":true`...)
	}
	if r.AllowsUsage() && !r.WantsUsage {
		add = append(add, `,"stream_options":`...)
		add = r.withUsage(add)
	}
	if len(add) == 0 {
		return r.PlainBody()
	}
	if add[0] == ',' {
		add = add[1:]
	}
	return r.rebuild(add)
}

// withUsage appends the client's stream_options with include_usage set. The
// client did not want usage at the end, so it gets none in between either.
func (r *Request) withUsage(dst []byte) []byte {
	dst = append(dst, `{"include_usage":true`...)
	if !r.options.absent() {
		dst = copyMembers(dst, r.options.of(r.body), func(name string) bool {
			return name == "include_usage" || name == "continuous_usage_stats"
		})
	}
	return append(dst, '}')
}

// copyMembers appends the members of an object, each after a comma, without
// those that drop names.
func copyMembers(dst, object []byte, drop func(name string) bool) []byte {
	gjson.Parse(unsafeString(object)).ForEach(func(k, v gjson.Result) bool {
		if !drop(k.Str) {
			dst = append(dst, ',')
			dst = append(dst, object[k.Index:v.Index+len(v.Raw)]...)
		}
		return true
	})
	return dst
}

// rebuild returns the body without the withheld members and with add, whose
// names replace every occurrence of theirs.
func (r *Request) rebuild(add []byte) []byte {
	replaced := func(name string) bool {
		switch name {
		case "stream":
			return !r.Stream && len(add) > 0
		case "return_token_ids":
			return !r.WantsIDs && r.AllowsIDs() && len(add) > 0
		case "stream_options":
			return !r.WantsUsage && r.AllowsUsage() && len(add) > 0
		}
		return isWithheld(name)
	}
	out := make([]byte, 0, len(r.body)+len(add)+2)
	out = append(out, '{')
	for _, m := range r.members {
		if m.name != "" && replaced(m.name) {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		if m.name == "vllm_xargs" {
			out = append(out, `"vllm_xargs":{`...)
			n := len(out)
			out = copyMembers(out, m.value.of(r.body), isWithheld)
			if len(out) > n {
				out = append(out[:n], out[n+1:]...) // no comma before the first
			}
			out = append(out, '}')
			continue
		}
		out = append(out, m.of(r.body)...)
	}
	if len(add) > 0 {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, add...)
	}
	return append(out, '}')
}
