package kvconnector

import (
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/engine/api"
)

// Bounds of Params.
const (
	maxName   = 512     // bytes of an engine id, a request id or a host
	maxBlocks = 1 << 20 // blocks of one request
)

// Params is a request's or an answer's kv_transfer_params. Fields of other connectors are ignored.
type Params struct {
	RemoteDecode  bool  // the answer's KV is wanted elsewhere
	RemotePrefill bool  // the prompt's KV is elsewhere: at the engine of the following fields
	Blocks        []int // in order of positions; the last may be filled in part
	EngineID      string
	RequestID     string
	Host          string
	Port          int
	Tokens        int // with KV; nothing checks it
	Cached        int // of Tokens: found in the prefix cache

	// Handle and Holder are instead of the engine and its blocks with a CascadeConnector: the handle
	// of an offer of the engine of that replica.
	Handle, Holder string
}

// HasHandle reports whether the fields name an offer of a CascadeConnector.
func (p *Params) HasHandle() bool { return p.RemotePrefill && p.Handle != "" && p.Holder != "" }

// Complete reports whether the fields name an engine and its blocks. vLLM ignores Params which do
// not.
func (p *Params) Complete() bool {
	return p.RemotePrefill && p.EngineID != "" && p.RequestID != "" && p.Host != "" && p.Port > 0 && len(p.Blocks) > 0
}

// Address returns the address of the engine's Server.
func (p *Params) Address() string { return net.JoinHostPort(p.Host, strconv.Itoa(p.Port)) }

// Field decodes a field. Its error says what is wrong with the value. Null is like an absent field.
func (p *Params) Field(key string, v gjson.Result) (err error) {
	if v.Type == gjson.Null {
		return nil
	}
	switch key {
	case "do_remote_decode":
		p.RemoteDecode, err = boolean(v)
	case "do_remote_prefill":
		p.RemotePrefill, err = boolean(v)
	case "remote_engine_id":
		p.EngineID, err = name(v)
	case "remote_request_id":
		p.RequestID, err = name(v)
	case "remote_host":
		p.Host, err = name(v)
	case "remote_port":
		p.Port, err = whole(v, math.MaxUint16)
	case "remote_num_tokens":
		p.Tokens, err = whole(v, math.MaxInt32)
	case "remote_prefill_cached_tokens":
		p.Cached, err = whole(v, math.MaxInt32)
	case "cascade_handle":
		p.Handle, err = name(v)
	case "cascade_holder":
		p.Holder, err = name(v)
	case "remote_block_ids":
		p.Blocks, err = blockIDs(v)
	}
	return err
}

// Append appends the object with which an engine answers a request with RemoteDecode.
func (p *Params) Append(b []byte) []byte {
	if p.Handle != "" {
		return fmt.Appendf(b, `{"do_remote_prefill":true,"do_remote_decode":false,"kv_connector":%q,"cascade_handle":%s,"cascade_holder":%s,"remote_num_tokens":%d}`,
			api.Connector, gjson.AppendJSONString(nil, p.Handle), gjson.AppendJSONString(nil, p.Holder), p.Tokens)
	}
	b = append(b, `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[`...)
	for i, block := range p.Blocks {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(block), 10)
	}
	return fmt.Appendf(b, `]],"remote_engine_id":%s,"remote_request_id":%s,"remote_host":%s,"remote_port":%d,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":%d,"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":%d}`,
		gjson.AppendJSONString(nil, p.EngineID), gjson.AppendJSONString(nil, p.RequestID), gjson.AppendJSONString(nil, p.Host), p.Port, p.Tokens, p.Cached)
}

func boolean(v gjson.Result) (bool, error) {
	if !v.IsBool() {
		return false, fmt.Errorf("must be true or false")
	}
	return v.Bool(), nil
}

func name(v gjson.Result) (string, error) {
	if v.Type != gjson.String || len(v.Str) > maxName {
		return "", fmt.Errorf("must be a string of at most %d bytes", maxName)
	}
	return strings.Clone(v.Str), nil
}

func whole(v gjson.Result, most int) (int, error) {
	if v.Type != gjson.Number || v.Num != math.Trunc(v.Num) || v.Num < 0 || v.Num > float64(most) {
		return 0, fmt.Errorf("must be a whole number of at most %d", most)
	}
	return int(v.Num), nil
}

// blockIDs decodes a list of block numbers, or a list with one such list: one per group of layers.
func blockIDs(v gjson.Result) (blocks []int, err error) {
	if v.IsArray() && v.Get("0").IsArray() {
		if v.Get("#").Int() != 1 {
			return nil, fmt.Errorf("must have one group of blocks")
		}
		v = v.Get("0")
	}
	if !v.IsArray() {
		return nil, fmt.Errorf("must be a list of block numbers")
	}
	v.ForEach(func(_, v gjson.Result) bool {
		var block int
		if block, err = whole(v, math.MaxInt32); err == nil && len(blocks) == maxBlocks {
			err = fmt.Errorf("must have at most %d blocks", maxBlocks)
		}
		blocks = append(blocks, block)
		return err == nil
	})
	if err != nil {
		return nil, err
	}
	return blocks, nil
}
