package kvconnector

import (
	"reflect"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// decode decodes all fields of an object.
func decode(json string) (p Params, err error) {
	gjson.Parse(json).ForEach(func(key, v gjson.Result) bool {
		err = p.Field(key.Str, v)
		return err == nil
	})
	return p, err
}

// sample is vLLM 0.32.0's answer to a handoff leg.
const sample = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4]],"remote_engine_id":"A","remote_request_id":"cmpl-hop-1.h1-0-ae27b03d","remote_host":"127.0.0.1","remote_port":5601,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":100,"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":0}`

func TestParamsAreVLLMs(t *testing.T) {
	p, err := decode(sample)
	testkit.NoError(t, err)
	if got := string(p.Append(nil)); got != sample || !p.Complete() || p.Address() != "127.0.0.1:5601" {
		t.Errorf("%s, complete %v, address %s", got, p.Complete(), p.Address())
	}
}

func TestParamsRejected(t *testing.T) {
	for _, bad := range []string{
		`{"do_remote_decode":1}`, `{"do_remote_prefill":"yes"}`, `{"remote_engine_id":7}`, `{"remote_port":65536}`, `{"remote_port":-1}`,
		`{"remote_port":1.5}`, `{"remote_block_ids":7}`, `{"remote_block_ids":[[1],[2]]}`, `{"remote_block_ids":[["1"]]}`, `{"remote_block_ids":[-1]}`,
		`{"remote_num_tokens":"9"}`, `{"remote_host":[]}`,
	} {
		if _, err := decode(bad); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
	for _, incomplete := range []string{
		`{}`, `{"do_remote_decode":true,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`, `{"do_remote_prefill":true,"remote_block_ids":[[]]}`,
	} {
		if p, err := decode(incomplete); err != nil || p.Complete() {
			t.Errorf("%s: %v, complete %v", incomplete, err, p.Complete())
		}
	}
}

// FuzzParams checks that the decoder never panics and that what it accepts survives its own answer.
func FuzzParams(f *testing.F) {
	for _, seed := range []string{sample, `{"remote_block_ids":[1,2]}`, `{"remote_block_ids":[[]]}`, `{"remote_host":"\u0000"}`, `[]`} {
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
		p.RemotePrefill, p.RemoteDecode = true, false
		if len(p.Blocks) == 0 {
			p.Blocks, again.Blocks = nil, nil
		}
		if !reflect.DeepEqual(p, again) {
			t.Fatalf("%+v became %+v", p, again)
		}
	})
}
