package kvport

import (
	"fmt"
	"math"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/engine/api"
)

// maxName bounds a handle or the name of a holder, in bytes.
const maxName = 512

// Params is a request's or an answer's kv_transfer_params. Fields of other connectors are ignored.
type Params struct {
	RemoteDecode  bool // the answer's KV is wanted elsewhere
	RemotePrefill bool // the prompt's KV is elsewhere: it is the offer Handle of the engine of replica Holder
	Handle        string
	Holder        string
	Tokens        int // with KV
}

// HasHandle reports whether the fields name an offer.
func (p *Params) HasHandle() bool { return p.RemotePrefill && p.Handle != "" && p.Holder != "" }

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
	case "remote_num_tokens":
		p.Tokens, err = whole(v, math.MaxInt32)
	case "cascade_handle":
		p.Handle, err = name(v)
	case "cascade_holder":
		p.Holder, err = name(v)
	}
	return err
}

// Append appends the object with which an engine answers a request with RemoteDecode.
func (p *Params) Append(b []byte) []byte {
	return fmt.Appendf(b, `{"do_remote_prefill":true,"do_remote_decode":false,"kv_connector":%q,"cascade_handle":%s,"cascade_holder":%s,"remote_num_tokens":%d}`,
		api.Connector, gjson.AppendJSONString(nil, p.Handle), gjson.AppendJSONString(nil, p.Holder), p.Tokens)
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
