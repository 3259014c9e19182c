package openai

import (
	"bytes"
	"strconv"

	"github.com/cascadeinfer/cascade/policies"
)

// MaxResume bounds, in bytes, what is kept of a request for another engine. It is
// kept for as long as the stream lives.
const MaxResume = 4 << 10

// defaultOutput is the default max_tokens of /v1/completions; chat has none but
// the context.
const defaultOutput = 16

var usageOnly = []byte(`{"include_usage":true}`)

// Resume is what is kept of a request so that another engine can continue its
// answer: how to sample, and how far. It does not have the prompt, whose token
// ids the stream has. A Resume is immutable.
type Resume struct {
	Endpoint     Endpoint
	Rest         []byte          // members that are sent verbatim, each after a comma
	Options      []byte          // stream_options, with usage
	limit, least policies.Tokens // max_tokens and min_tokens; 0 for none
}

// Resume returns what another engine needs. ok is false for a request whose
// answer would differ there, whatever policies.Movable says, or that needs more
// than MaxResume bytes.
func (r *Request) Resume() (q Resume, ok bool) {
	if r.tied || r.Features&^policies.MinTokens != 0 {
		return Resume{}, false
	}
	q = Resume{Endpoint: r.Endpoint, limit: r.MaxOutput, least: r.MinOutput, Options: usageOnly}
	switch {
	case r.WantsUsage:
		q.Options = bytes.Clone(r.options.of(r.body))
	case !r.options.absent():
		q.Options = r.withUsage(nil)
	}
	if q.limit == 0 && r.Endpoint == Completions {
		q.limit = max(defaultOutput, q.least)
	}
	size := len(q.Options)
	for _, m := range r.members {
		if m.name == "" {
			size += m.to - m.from + 1
		}
	}
	if size > MaxResume {
		return Resume{}, false
	}
	q.Rest = make([]byte, 0, size)
	for _, m := range r.members {
		if m.name == "" { // members that edits concern belong to a leg, not to the answer
			q.Rest = append(append(q.Rest, ','), m.of(r.body)...)
		}
	}
	return q, true
}

// Limited returns q for an engine that generates at most so many tokens for the
// request, whatever the client asked for; 0 stands for unknown. Legs at other
// engines then generate what is left of them.
func (q Resume) Limited(most policies.Tokens) Resume {
	if most > 0 && (q.limit == 0 || most < q.limit) {
		q.limit = most
	}
	return q
}

// Remaining returns how many tokens may follow after output tokens: 0 for none,
// −1 for as many as the context has room for.
func (q *Resume) Remaining(output int) int {
	if q.limit == 0 {
		return -1
	}
	return int(max(q.limit-policies.Tokens(output), 0))
}

// Least returns how many tokens must follow after output tokens at least.
func (q *Resume) Least(output int) int { return int(max(q.least-policies.Tokens(output), 0)) }

// AppendLimits appends what is left of max_tokens and min_tokens after output tokens, as members of a body
// that has others before.
func (q *Resume) AppendLimits(dst []byte, output int) []byte {
	if left := q.Remaining(output); left >= 0 {
		dst = strconv.AppendInt(append(dst, `,"max_tokens":`...), int64(left), 10)
	}
	if more := q.Least(output); more > 0 {
		dst = strconv.AppendInt(append(dst, `,"min_tokens":`...), int64(more), 10)
	}
	return dst
}
