package dialect

import (
	"strings"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/tidwall/gjson"
)

// Request is a client's body, read once.
type Request struct {
	Endpoint  Endpoint
	Model     string
	MaxOutput policies.Tokens // max_tokens or max_completion_tokens, 0 when the client set none
	Features  Feature
	// Stream, Usage and IDs tell whether the client itself asked for a stream,
	// for usage at its end and for token ids.
	Stream, Usage, IDs bool

	body    []byte
	members []member
	options span // stream_options' value, if an object
	foreign bool // some member must not reach the engine
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
	if err := check(body); err != nil {
		return r, err
	}
	r.members = make([]member, 0, 16)
	// Of equal names the last one counts, as in the engines' readers; each
	// occurrence is seen, because a forged first one must not hide a second.
	each(body, span{0, len(body)}, func(name []byte, whole, value span) bool {
		m := member{span: whole, value: value}
		if r.field(view(name), value) {
			m.name = view(name)
		}
		r.members = append(r.members, m)
		return true
	})
	return r, nil
}

// field takes one member in and reports whether an edit may concern it.
func (r *Request) field(name string, value span) (edited bool) {
	switch name { // the large ones, which no other reader needs to see
	case "prompt":
		r.Features |= promptFeature(r.body, value)
		return false
	case "messages":
		r.Features |= messagesFeature(r.body, value)
		return false
	}
	v := gjson.Parse(view(value.of(r.body)))
	switch name {
	case "model":
		r.Model = strings.Clone(v.Str)
	case "stream":
		r.Stream = r.boolean(v)
		return true
	case "stream_options":
		r.options, r.Usage = span{}, false
		switch {
		case v.IsObject():
			r.options = value
			v.ForEach(func(k, o gjson.Result) bool {
				if k.Str == "include_usage" {
					r.Usage = r.boolean(o)
				}
				return true
			})
		case v.Type != gjson.Null:
			r.Features |= Odd
		}
		return true
	case "return_token_ids":
		r.IDs = r.boolean(v)
		return true
	case "kv_transfer_params", "ec_transfer_params":
		r.foreign = true
		return true
	case "vllm_xargs":
		// The engine adds these to the same table as kv_transfer_params.
		if v.IsObject() {
			v.ForEach(func(k, _ gjson.Result) bool {
				r.foreign = r.foreign || isWithheld(k.Str)
				return true
			})
			return true
		}
	case "max_tokens":
		if r.MaxOutput == 0 {
			r.MaxOutput = positive(v)
		}
	case "max_completion_tokens":
		if n := positive(v); n > 0 {
			r.MaxOutput = n
		}
	default:
		r.Features |= featureOf(name, v)
	}
	return false
}

// boolean reads a flag; engines also take "true" and 1, which is Odd here.
func (r *Request) boolean(v gjson.Result) bool {
	if v.Type != gjson.True && v.Type != gjson.False && v.Type != gjson.Null {
		r.Features |= Odd
	}
	return v.Type == gjson.True
}

func positive(v gjson.Result) policies.Tokens {
	if v.Type != gjson.Number || v.Num < 1 {
		return 0
	}
	return policies.Tokens(min(v.Num, 1<<53))
}

// featureOf tells what one field asks for.
func featureOf(name string, v gjson.Result) Feature {
	set := func(f Feature, on bool) Feature {
		if on {
			return f
		}
		return 0
	}
	number := func(f Feature, idle float64) Feature {
		switch v.Type {
		case gjson.Null:
			return 0
		case gjson.Number:
			return set(f, v.Num != idle)
		}
		return f | Odd
	}
	given := v.Type != gjson.Null && v.Type != gjson.False && !(v.IsArray() && !nonEmpty(v)) && v.Raw != `""`
	switch name {
	case "n", "best_of":
		return number(Choices, 1)
	case "use_beam_search":
		return set(Choices, given)
	case "echo":
		return set(Echo, given)
	case "logprobs":
		return set(Logprobs, given)
	case "top_logprobs":
		return number(Logprobs, 0)
	case "prompt_logprobs":
		return set(PromptLogprobs, given)
	case "tools", "functions":
		return set(Tools, given)
	case "tool_choice":
		return set(Tools, given && v.Str != "none")
	case "response_format":
		return set(Structured, given && v.Get("type").Str != "text")
	case "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag":
		return set(Structured, given)
	case "presence_penalty", "frequency_penalty":
		return number(Penalties, 0)
	case "min_tokens":
		return number(OutputCounts, 0)
	case "bad_words", "thinking_token_budget":
		return set(OutputCounts, given)
	case "seed":
		return set(Seed, given)
	case "stop":
		return set(Stop, given)
	case "prompt_embeds":
		return set(Multimodal, given)
	case "include_reasoning":
		return set(HiddenTokens, v.Type == gjson.False)
	case "return_prompt_text", "suffix":
		return set(Odd, given)
	}
	return 0
}

func nonEmpty(v gjson.Result) bool {
	found := false
	v.ForEach(func(_, _ gjson.Result) bool { found = true; return false })
	return found
}

// promptFeature tells one prompt (text, token ids, or either alone in a list)
// from several.
func promptFeature(b []byte, prompt span) (f Feature) {
	if b[prompt.from] != '[' {
		return 0
	}
	n := 0
	each(b, prompt, func(_ []byte, _, e span) bool {
		if c := b[e.from]; c != '"' && c != '[' {
			return false // a list of ids: one prompt
		}
		if n++; n > 1 {
			f = Prompts
		}
		return f == 0
	})
	return f
}

func messagesFeature(b []byte, messages span) (f Feature) {
	each(b, messages, func(_ []byte, _, message span) bool {
		each(b, message, func(name []byte, _, content span) bool {
			if string(name) == "content" && b[content.from] == '[' {
				each(b, content, func(_ []byte, _, part span) bool {
					if b[part.from] == '{' && gjson.Get(view(part.of(b)), "type").Str != "text" {
						f = Multimodal
					}
					return true
				})
			}
			return true
		})
		return f == 0
	})
	return f
}

// Streamable reports whether the engine's events for this request are ones
// that a front understands, given that the client asked for a stream.
func (r *Request) Streamable() bool { return r.Stream && !r.Features.Has(Odd) }

// Assemblable reports whether an unstreamed answer to this request can be put
// together from a stream, byte for byte. A request with stream_options but no
// stream is one that engines refuse, and must keep refusing.
func (r *Request) Assemblable() bool {
	return !r.Stream && r.options.absent() && !r.Features.Has(exactOnly)
}

// CountsIDs reports whether token ids may be asked for: an engine that echoes
// the prompt leaves it out as soon as ids are wanted.
func (r *Request) CountsIDs() bool { return !r.Features.Has(Echo | Odd) }

// CountsUsage reports whether usage may be asked for and taken out again. With
// several choices it may not: the fingerprint that an engine then moves to the
// usage event could not be put back where it belongs.
func (r *Request) CountsUsage() bool { return !r.Features.Has(Choices | Prompts | Odd) }

// Plain returns the body for an engine with nothing changed but what must not
// reach one. It returns the client's bytes when that is nothing.
func (r *Request) Plain() []byte {
	if !r.foreign {
		return r.body
	}
	return r.rebuild(nil)
}

// Streamed returns the body for an engine as a stream, with token ids and
// usage asked for where that is allowed.
func (r *Request) Streamed() []byte {
	var add []byte
	if !r.Stream {
		add = append(add, `"stream":true`...)
	}
	if r.CountsIDs() && !r.IDs {
		add = append(add, `,"return_token_ids":true`...)
	}
	if r.CountsUsage() && !r.Usage {
		add = append(add, `,"stream_options":`...)
		add = r.withUsage(add)
	}
	if len(add) == 0 {
		return r.Plain()
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
	gjson.Parse(view(object)).ForEach(func(k, v gjson.Result) bool {
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
			return !r.IDs && r.CountsIDs() && len(add) > 0
		case "stream_options":
			return !r.Usage && r.CountsUsage() && len(add) > 0
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
