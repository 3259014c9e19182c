package openai

import (
	"bytes"
	"errors"
	"strconv"

	"github.com/tidwall/gjson"

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
	endpoint Endpoint
	rest     []byte // members that are sent verbatim, each after a comma
	options  []byte // stream_options, with usage
	limit    policies.Tokens
	least    policies.Tokens
}

// Resume returns what another engine needs. ok is false for a request whose
// answer would differ there, whatever policies.Movable says, or that needs more
// than MaxResume bytes.
func (r *Request) Resume() (q Resume, ok bool) {
	if r.tied || r.Features&^policies.MinTokens != 0 {
		return Resume{}, false
	}
	q = Resume{endpoint: r.Endpoint, limit: r.MaxOutput, least: r.MinOutput, options: usageOnly}
	switch {
	case r.WantsUsage:
		q.options = bytes.Clone(r.options.of(r.body))
	case !r.options.absent():
		q.options = r.withUsage(nil)
	}
	if q.limit == 0 && r.Endpoint == Completions {
		q.limit = max(defaultOutput, q.least)
	}
	size := len(q.options)
	for _, m := range r.members {
		if m.name == "" {
			size += m.to - m.from + 1
		}
	}
	if size > MaxResume {
		return Resume{}, false
	}
	q.rest = make([]byte, 0, size)
	for _, m := range r.members {
		if m.name == "" { // members that edits concern belong to a leg, not to the answer
			q.rest = append(append(q.rest, ','), m.of(r.body)...)
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

// head appends the beginning of the body of a leg after output tokens.
func (q *Resume) head(dst []byte, output int) []byte {
	dst = append(dst, `{"stream":true,"return_token_ids":true,"stream_options":`...)
	dst = append(dst, q.options...)
	if left := q.Remaining(output); left >= 0 {
		dst = append(dst, `,"max_tokens":`...)
		dst = strconv.AppendInt(dst, int64(left), 10)
	}
	if more := q.least - policies.Tokens(output); more > 0 {
		dst = append(dst, `,"min_tokens":`...)
		dst = strconv.AppendInt(dst, int64(more), 10)
	}
	return dst
}

// withIDs appends the members that make an engine continue token ids. Chat
// requires a message although the engine ignores it.
func (q *Resume) withIDs(dst []byte, ids []uint32) []byte {
	if q.endpoint == Chat {
		dst = append(dst, `,"messages":[{"role":"user","content":"."}],"kv_transfer_params":{"prompt_token_ids":`...)
		return append(appendList(dst, ids), '}')
	}
	return appendList(append(dst, `,"prompt":`...), ids)
}

// PromptBody returns the body of a leg that continues token ids, the last output
// of which were generated.
func (q *Resume) PromptBody(ids []uint32, output int) []byte {
	dst := make([]byte, 0, 7*len(ids)+len(q.rest)+256)
	dst = q.withIDs(q.head(dst, output), ids)
	return append(append(dst, q.rest...), '}')
}

// WarmupBody returns the body of a request that makes an engine compute the KV of
// token ids; its one token is discarded.
func (q *Resume) WarmupBody(ids []uint32) []byte {
	dst := append(make([]byte, 0, 7*len(ids)+len(q.rest)+128), `{"max_tokens":1`...)
	dst = q.withIDs(dst, ids)
	return append(append(dst, q.rest...), '}')
}

// AdoptBody returns the body of a leg whose engine has the ids and their KV
// already; WithTransferParams adds where. output tokens were generated before.
func (q *Resume) AdoptBody(output int) []byte {
	dst := q.head(make([]byte, 0, len(q.rest)+256), output)
	if q.endpoint == Chat {
		dst = append(dst, `,"messages":[]`...)
	} else {
		dst = append(dst, `,"prompt":[]`...)
	}
	return append(append(dst, q.rest...), '}')
}

// WithTransferParams returns a body of AdoptBody with kv_transfer_params, which
// include how many of the ids are the prompt's: the engine completes a character
// that the output has begun, not one of the prompt. The error says what is wrong
// with the body or the parameters.
func WithTransferParams(body, params []byte, prompt int) ([]byte, error) {
	if err := checkObject(body); err != nil {
		return nil, err
	}
	if err := checkObject(params); err != nil {
		return nil, errors.New("the transfer parameters are " + err.Error())
	}
	if !nonEmpty(gjson.ParseBytes(body)) || !nonEmpty(gjson.ParseBytes(params)) {
		return nil, errors.New("a leg's body or its transfer parameters are empty")
	}
	out := append(make([]byte, 0, len(body)+len(params)+64), body[:bytes.LastIndexByte(body, '}')]...)
	out = append(append(out, `,"kv_transfer_params":`...), params[:bytes.LastIndexByte(params, '}')]...)
	out = append(out, `,"cascade_prompt":`...)
	return append(strconv.AppendInt(out, int64(prompt), 10), "}}"...), nil
}
