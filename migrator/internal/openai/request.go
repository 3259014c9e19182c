package openai

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/policies"
)

// Request is a client's body, parsed once.
type Request struct {
	Endpoint  Endpoint
	Model     string
	MaxOutput policies.Tokens // max_tokens or max_completion_tokens, 0 if the client set none
	MinOutput policies.Tokens // min_tokens, 0 if the client set none
	// ResponseOutput is max_output_tokens, which only the responses API reads; 0 if the client set none.
	ResponseOutput policies.Tokens
	// Choices is how many sequences the engine generates for each prompt: n or best_of, at least 1.
	Choices int
	// Features is what ties the request to one engine. A seed counts unless the
	// client asks for greedy decoding.
	Features policies.Features
	// Stream, WantsUsage and WantsIDs say whether the client itself asked for a
	// stream, for usage at its end and for token ids.
	Stream, WantsUsage, WantsIDs bool
	// CacheSalt separates cached prompts: an engine finds only those of the same salt. "" is
	// none. It is a part of the body.
	CacheSalt string

	fields      *Fields
	body        []byte
	learnt      []uint32
	members     []member
	options     span // stream_options' value, if an object
	prompt      span // prompt's or messages' value
	hasWithheld bool // a member must not reach the engine
	withoutIDs  bool // see WithoutIDs
	logprobs    bool // the answer has log probabilities
	tied        bool // a second engine may answer differently, for a reason that is no feature
	greatestID  float64
	// The last values of max_tokens and max_completion_tokens.
	maxTokens, maxCompletion policies.Tokens
}

// member is one top-level "key": value of the body.
type member struct {
	span
	name  string // as the engine reads it, escapes resolved; "" if no edit concerns it
	value span
}

// What a body may make its readers keep: an engine knows some hundred members, and the
// name of the model is kept for as long as the stream lives, and sent to peers.
const (
	MaxMembers = 1024 // of the body
	MaxModel   = 1024 // bytes
	// MaxChoices is the greatest Request.Choices: engines refuse more.
	MaxChoices = 1 << 14
)

// Parse parses a body, which the Request refers to. The error says what is wrong
// with the JSON text and where, in words for the client. Fields that an engine
// would refuse are left for the engine to refuse.
func (f *Fields) Parse(e Endpoint, body []byte) (Request, error) {
	r := Request{Endpoint: e, fields: f, body: body, Choices: 1}
	if err := CheckObject(body); err != nil {
		return r, err
	}
	r.members = make([]member, 0, 16)
	tooMany := false
	greedy := false
	// Of equal names the last one counts, as in the engines' parsers. Every
	// occurrence is examined, because a forged first one must not hide a second.
	eachMember(body, span{0, len(body)}, func(name []byte, whole, value span) bool {
		if tooMany = len(r.members) == MaxMembers; tooMany {
			return false
		}
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
	switch {
	case tooMany:
		return r, fmt.Errorf("an object with more than %d members", MaxMembers)
	case len(r.Model) > MaxModel:
		return r, fmt.Errorf("an object whose model has a name of more than %d bytes", MaxModel)
	}
	if greedy {
		r.Features &^= policies.Seed
	}
	if r.MaxOutput = r.maxCompletion; r.MaxOutput == 0 {
		r.MaxOutput = r.maxTokens
	}
	return r, nil
}

// field records one member and reports whether an edit may concern it.
func (r *Request) field(name string, value span) (edited bool) {
	if only, may := r.fields.IDLists[name]; may && r.body[value.from] == '[' {
		r.greatestID = max(r.greatestID, greatestID(r.body, value, only))
	}
	switch name { // the large ones, which are not parsed further
	case "prompt":
		if r.Endpoint == Completions {
			r.prompt = value
		}
		r.Features |= promptFeature(r.body, value)
		return true
	case "messages":
		if r.Endpoint == Chat {
			r.prompt = value
		}
		r.Features |= messagesFeature(r.body, value)
		return true
	}
	v := gjson.Parse(unsafeString(value.of(r.body)))
	f := r.fields
	switch {
	case f.withholds(name):
		r.hasWithheld = true
		return true
	case name != "" && name == f.IDs:
		r.WantsIDs = r.boolean(v)
		return true
	case name != "" && name == f.Nested && v.IsObject():
		v.ForEach(func(k, _ gjson.Result) bool {
			r.hasWithheld = r.hasWithheld || f.withholds(k.Str)
			r.tied = true // arguments of an engine's plugin
			return true
		})
		return true
	case slices.Contains(f.Tied, name):
		r.tied = r.tied || v.Type != gjson.Null
	}
	switch name {
	case "model":
		r.Model = strings.Clone(v.Str)
	case "cache_salt":
		r.CacheSalt = v.Str
	case "stream":
		r.Stream = r.boolean(v)
		return true
	case "stream_options":
		r.streamOptions(v, value)
		return true
	case "logprobs":
		r.logprobs = v.Type != gjson.Null && v.Type != gjson.False
		r.tied = r.tied || r.logprobs && r.Endpoint == Completions // text_offset counts from the leg's first text
	case "max_tokens":
		r.maxTokens = r.count(v)
		return true
	case "max_output_tokens":
		r.ResponseOutput = r.count(v)
	case "n", "best_of":
		// Engines also read "4" and 4.0. Of equal names the greatest counts: no engine generates more.
		r.Choices = min(max(r.Choices, int(v.Int())), MaxChoices)
		r.Features |= f.featureOf(name, v)
	case "max_completion_tokens":
		r.maxCompletion = r.count(v)
		r.tied = r.tied || r.Endpoint == Completions && v.Type != gjson.Null // some engines read it there
		return true
	case "min_tokens":
		r.MinOutput = r.count(v)
		r.Features |= f.featureOf(name, v)
		return true
	default:
		r.Features |= f.featureOf(name, v)
		return slices.Contains(f.PromptOnly, name)
	}
	return false
}

// streamOptions records whether a client wants the usage of a stream.
func (r *Request) streamOptions(v gjson.Result, value span) {
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
}

// boolean returns a flag. Engines also accept "true" and 1; requests that use
// those are Unreadable.
func (r *Request) boolean(v gjson.Result) bool {
	if v.Type != gjson.True && v.Type != gjson.False && v.Type != gjson.Null {
		r.Features |= policies.Unreadable
	}
	return v.Type == gjson.True
}

// count returns a number of tokens, 0 for none. Engines also accept "7" and 7.0.
func (r *Request) count(v gjson.Result) policies.Tokens {
	if v.Type != gjson.Number || v.Num != math.Trunc(v.Num) {
		r.tied = r.tied || v.Type != gjson.Null
	}
	if v.Type != gjson.Number || v.Num < 1 {
		return 0
	}
	return policies.Tokens(min(v.Num, 1<<53))
}

// Streamable reports whether the client asked for a stream whose events the front
// end can parse.
func (r *Request) Streamable() bool { return r.Stream && !r.Features.Has(policies.Unreadable) }

// Assemblable reports whether an unstreamed answer to this request can be
// assembled from a stream, byte for byte. Engines refuse a request with
// stream_options and without stream, so it is not assemblable: the engine must
// see it.
func (r *Request) Assemblable() bool {
	return !r.Stream && r.options.absent() && !r.logprobs && !r.Features.Has(exactOnly)
}

// AllowsIDs reports whether token ids may be requested. An engine that echoes the
// prompt omits it as soon as ids are requested.
func (r *Request) AllowsIDs() bool {
	return r.fields.IDs != "" && !r.withoutIDs && !r.Features.Has(policies.Echo|policies.Unreadable)
}

// WithoutIDs records that the engine refuses to return token ids: the front end requests none, and the request cannot
// move.
func (r *Request) WithoutIDs() {
	r.withoutIDs = true
	r.Features |= policies.HiddenTokens
}

// AllowsUsage reports whether usage may be requested and removed again. With
// several choices it may not: the engine then moves the fingerprint to the usage
// event, and it could not be put back in its place.
func (r *Request) AllowsUsage() bool {
	return !r.Features.Has(policies.Choices | policies.Prompts | policies.Unreadable)
}

// PlainBody returns the body for an engine, changed only by the removal of
// withheld fields. Without such fields it returns the client's bytes.
func (r *Request) PlainBody() []byte {
	if !r.hasWithheld {
		return r.body
	}
	return r.rebuild(nil)
}

// StreamBody returns the body that asks an engine for a stream, with token ids
// and usage if they may be requested.
func (r *Request) StreamBody() []byte {
	var add []byte
	if !r.Stream {
		add = append(add, `"stream":true`...)
	}
	if r.AllowsIDs() && !r.WantsIDs {
		add = append(append(append(add, `,"`...), r.fields.IDs...), `":true`...)
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
// client did not ask for usage at the end, so it gets none in between either.
func (r *Request) withUsage(dst []byte) []byte {
	dst = append(dst, `{"include_usage":true`...)
	if !r.options.absent() {
		dst = copyMembers(dst, r.options.of(r.body), func(name string) bool {
			return name == "include_usage" || name == "continuous_usage_stats"
		})
	}
	return append(dst, '}')
}

// copyMembers appends the members of an object, each after a comma, except for
// those whose names drop reports.
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
// members replace all members of the same names.
func (r *Request) rebuild(add []byte) []byte {
	replaced := func(name string) bool {
		switch name {
		case "stream":
			return !r.Stream && len(add) > 0
		case r.fields.IDs:
			return !r.WantsIDs && r.AllowsIDs() && len(add) > 0
		case "stream_options":
			return !r.WantsUsage && r.AllowsUsage() && len(add) > 0
		}
		return r.fields.withholds(name)
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
		if m.name != "" && m.name == r.fields.Nested {
			out = append(append(append(out, '"'), m.name...), `":{`...)
			n := len(out)
			out = copyMembers(out, m.value.of(r.body), r.fields.withholds)
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
