package openai

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/tidwall/gjson"
)

// handoffRequest asks vLLM's KV connector to keep the KV of a request for another
// engine.
const handoffRequest = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// ConnectorRequest is the body of a request to /v1/completions whose answer shows, to
// ParseHandoff, whether the engine's default model has a KV connector. It costs one token,
// and one block until the engine's lease ends.
const ConnectorRequest = `{"prompt":[1],"max_tokens":1,"temperature":0,"ignore_eos":true,"kv_transfer_params":` + handoffRequest + `}`

// ConnectorName returns the name that a KV connector gives itself in its parameters, as
// "kv_connector", "" for none.
func ConnectorName(answer []byte) string {
	name := gjson.GetBytes(answer, "kv_transfer_params.kv_connector")
	if name.Type != gjson.String {
		return ""
	}
	return name.Str
}

// ErrNoConnector is returned for the answer of an engine that hands no KV over.
var ErrNoConnector = errors.New("the engine has no KV connector")

// HandoffBody returns the body of a request to /v1/completions, whichever endpoint the
// stream has, that makes the engine that runs the stream keep the KV of token ids for
// another engine. It finds them in its prefix cache, and its one token is discarded.
// The end of the text must not end it: some engines then keep nothing.
func (q *Resume) HandoffBody(ids []uint32) []byte {
	dst := append(make([]byte, 0, 7*len(ids)+512), `{"max_tokens":1,"temperature":0,"ignore_eos":true,"kv_transfer_params":`+handoffRequest+`,"prompt":`...)
	dst = appendList(dst, ids)
	// What else chooses the model and the cached blocks. The other members may mean
	// something else at this endpoint.
	rest := "{" + string(q.rest[min(1, len(q.rest)):]) + "}"
	for _, name := range [...]string{"model", "cache_salt", "priority"} {
		if v := gjson.Get(rest, name); v.Exists() {
			dst = append(append(dst, `,"`+name+`":`...), v.Raw...)
		}
	}
	return append(dst, '}')
}

// ParseHandoff returns the parameters, as the engine wrote them, with which another
// engine fetches the KV of exactly so many token ids, from an answer to HandoffBody. The
// error is ErrNoConnector, or says why no engine may be given them: with fewer or more
// ids than they are for, it answers with wrong tokens or dies.
func ParseHandoff(answer []byte, ids int) ([]byte, error) {
	if err := checkObject(answer); err != nil {
		return nil, fmt.Errorf("the answer is %w", err)
	}
	params := gjson.GetBytes(answer, "kv_transfer_params")
	switch counted := params.Get("remote_num_tokens"); {
	case !params.Exists() || params.Type == gjson.Null:
		return nil, ErrNoConnector
	case !params.IsObject() || params.Get("do_remote_prefill").Type != gjson.True:
		return nil, errors.New("the answer's kv_transfer_params do not offer KV")
	case params.Get("prompt_token_ids").Exists():
		return nil, errors.New("the answer's kv_transfer_params have token ids of their own")
	case counted.Type != gjson.Number || counted.Raw != strconv.Itoa(ids):
		return nil, fmt.Errorf("the engine hands over %.20q token ids, not the %d of the stream", counted.Raw, ids)
	}
	return []byte(params.Raw), nil
}

// PullBody is WarmupBody for an engine that fetches the KV with params, of ParseHandoff.
func (q *Resume) PullBody(ids []uint32, params []byte) []byte {
	dst := append(make([]byte, 0, 7*len(ids)+len(q.rest)+len(params)+128), `{"max_tokens":1`...)
	dst = q.withPulledIDs(dst, ids, params)
	return append(append(dst, q.rest...), '}')
}

// PulledPromptBody is PromptBody for an engine that fetches the KV with params, of
// ParseHandoff.
func (q *Resume) PulledPromptBody(ids []uint32, output int, params []byte) []byte {
	dst := q.head(make([]byte, 0, 7*len(ids)+len(q.rest)+len(params)+256), output)
	dst = q.withPulledIDs(dst, ids, params)
	return append(append(dst, q.rest...), '}')
}

// withPulledIDs is withIDs with parameters for the engine's KV connector.
func (q *Resume) withPulledIDs(dst []byte, ids []uint32, params []byte) []byte {
	if q.endpoint == Chat {
		dst = append(append(dst, `,"messages":[{"role":"user","content":"."}],"kv_transfer_params":`...), params[:len(params)-1]...)
		return append(appendList(append(dst, `,"prompt_token_ids":`...), ids), '}')
	}
	return append(append(appendList(append(dst, `,"prompt":`...), ids), `,"kv_transfer_params":`...), params...)
}

// TransferOf says what a leg's body asks of the engine's KV connector: to keep KV for
// another engine, or to fetch it from one. Either way the engine need not compute it.
func TransferOf(body []byte) (keeps, fetches bool) {
	params := gjson.GetBytes(body, "kv_transfer_params")
	return params.Get("do_remote_decode").Type == gjson.True, params.Get("do_remote_prefill").Type == gjson.True
}
