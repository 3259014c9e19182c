package vllm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
)

// Continue implements dialect.Dialect. Chat requires a message although the engine ignores it when it is
// given ids.
func (Dialect) Continue(q *openai.Resume, c dialect.Continuation) []byte {
	dst := make([]byte, 0, 7*len(c.IDs)+len(q.Rest)+len(c.Fetch)+256)
	if c.Warm {
		dst = append(dst, `{"max_tokens":1`...)
	} else {
		dst = q.AppendLimits(append(append(dst, `{"stream":true,"return_token_ids":true,"stream_options":`...), q.Options...), c.Output)
	}
	chat := q.Endpoint == openai.Chat
	switch {
	case c.IDs == nil && chat:
		dst = append(dst, `,"messages":[]`...)
	case c.IDs == nil:
		dst = append(dst, `,"prompt":[]`...)
	case chat:
		dst = append(dst, `,"messages":[{"role":"user","content":"."}],"kv_transfer_params":{`...)
		if c.Fetch != nil {
			dst = append(append(dst, c.Fetch[1:len(c.Fetch)-1]...), ',')
		}
		dst = append(openai.AppendIDList(append(dst, `"prompt_token_ids":`...), c.IDs), '}')
	default:
		dst = openai.AppendIDList(append(dst, `,"prompt":`...), c.IDs)
		if c.Fetch != nil {
			dst = append(append(dst, `,"kv_transfer_params":`...), c.Fetch...)
		}
	}
	return append(append(dst, q.Rest...), '}')
}

// Open implements dialect.Dialect.
func (Dialect) Open(e openai.Endpoint, _ []byte) (string, func(io.Reader) io.Reader) {
	return e.Path(), nil
}

// Keep implements dialect.KV. The end of the text must not end the request: some connectors then keep
// nothing.
func (Dialect) Keep(q *openai.Resume, ids []uint32) []byte {
	dst := append(make([]byte, 0, 7*len(ids)+512), `{"max_tokens":1,"temperature":0,"ignore_eos":true,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,`+
		`"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null},"prompt":`...)
	dst = openai.AppendIDList(dst, ids)
	// What else chooses the model and the cached blocks. The other members may mean
	// something else at this endpoint.
	rest := "{" + string(bytes.TrimPrefix(q.Rest, []byte(","))) + "}"
	for _, name := range [...]string{"model", "cache_salt", "priority"} {
		if v := gjson.Get(rest, name); v.Exists() {
			dst = append(append(dst, `,"`+name+`":`...), v.Raw...)
		}
	}
	return append(dst, '}')
}

// Kept implements dialect.KV.
func (Dialect) Kept(answer []byte, ids int) (params []byte, connector string, err error) {
	if err := openai.CheckObject(answer); err != nil {
		return nil, "", fmt.Errorf("the answer is %w", err)
	}
	given := gjson.GetBytes(answer, "kv_transfer_params")
	switch counted := given.Get("remote_num_tokens"); {
	case !given.Exists() || given.Type == gjson.Null:
		return nil, "", engineinfo.ErrNoConnector
	case !given.IsObject() || given.Get("do_remote_prefill").Type != gjson.True:
		return nil, "", errors.New("the answer's kv_transfer_params do not offer KV")
	case given.Get("prompt_token_ids").Exists():
		return nil, "", errors.New("the answer's kv_transfer_params have token ids of their own")
	case counted.Type != gjson.Number || counted.Raw != strconv.Itoa(ids):
		return nil, "", fmt.Errorf("the engine hands over %.20q token ids, not the %d of the stream", counted.Raw, ids)
	}
	if name := given.Get("kv_connector"); name.Type == gjson.String {
		connector = name.Str
	}
	return []byte(given.Raw), connector, nil
}

// Transfers implements dialect.KV.
func (Dialect) Transfers(body []byte) (keeps, fetches bool) {
	params := gjson.GetBytes(body, "kv_transfer_params")
	return params.Get("do_remote_decode").Type == gjson.True, params.Get("do_remote_prefill").Type == gjson.True
}

// Adopt implements dialect.KV, for the emulator.
func (Dialect) Adopt(body, params []byte, prompt int) ([]byte, error) {
	for _, object := range [][]byte{body, params} {
		if err := openai.CheckObject(object); err != nil {
			return nil, fmt.Errorf("a leg's body or its transfer parameters are %w", err)
		}
		if gjson.GetBytes(object, "@keys.#").Int() == 0 {
			return nil, errors.New("a leg's body or its transfer parameters are empty")
		}
	}
	out := append(make([]byte, 0, len(body)+len(params)+64), body[:bytes.LastIndexByte(body, '}')]...)
	out = append(append(out, `,"kv_transfer_params":`...), params[:bytes.LastIndexByte(params, '}')]...)
	out = append(out, `,"cascade_prompt":`...)
	return append(strconv.AppendInt(out, int64(prompt), 10), "}}"...), nil
}
