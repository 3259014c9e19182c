package kvport

import (
	"testing"

	"github.com/tidwall/gjson"
)

// decode decodes all fields of an object.
func decode(json string) (p Params, err error) {
	gjson.Parse(json).ForEach(func(key, v gjson.Result) bool {
		err = p.Field(key.Str, v)
		return err == nil
	})
	return p, err
}

// sample is the answer of CascadeConnector to a handoff leg.
const sample = `{"do_remote_prefill":true,"do_remote_decode":false,"kv_connector":"CascadeConnector","cascade_handle":"00112233445566778899aabbccddeeff","cascade_holder":"r0","remote_num_tokens":100}`

func TestParamsRejected(t *testing.T) {
	for _, bad := range []string{
		`{"do_remote_decode":1}`, `{"do_remote_prefill":"yes"}`, `{"cascade_handle":7}`, `{"cascade_holder":[]}`, `{"remote_num_tokens":"9"}`, `{"remote_num_tokens":-1}`,
	} {
		if _, err := decode(bad); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
	// Without a handle and a holder nothing is fetched, whatever another connector's fields are.
	for text, want := range map[string]bool{
		sample: true, `{}`: false, `{"do_remote_prefill":true,"cascade_handle":"x","cascade_holder":null}`: false,
		`{"do_remote_prefill":true,"remote_engine_id":"A","remote_block_ids":[[1]],"remote_port":"none"}`: false,
	} {
		if p, err := decode(text); err != nil || p.HasHandle() != want {
			t.Errorf("%s: %v, has a handle: %v", text, err, p.HasHandle())
		}
	}
}

// FuzzParams checks that the decoder never panics and that what it accepts survives its own answer.
func FuzzParams(f *testing.F) {
	for _, seed := range []string{sample, `{"cascade_holder":"\u0000"}`, `[]`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, json string) {
		if !gjson.Valid(json) {
			return
		}
		p, err := decode(json)
		if err != nil {
			return
		}
		answer := string(p.Append(nil))
		again, err := decode(answer)
		if err != nil || !gjson.Valid(answer) {
			t.Fatalf("%s is not accepted: %v", answer, err)
		}
		if p.RemotePrefill, p.RemoteDecode = true, false; p != again {
			t.Fatalf("%+v became %+v", p, again)
		}
	})
}
