package opa

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

func change() abi.Change {
	return abi.Change{
		Now: policies.Plan{Model: "m", Epoch: 1<<64 - 2, Stages: []policies.Stage{{High: policies.Unbounded, Replicas: []policies.ReplicaID{"a", "b"}}}},
		Next: policies.Plan{Model: "m", Epoch: 1<<64 - 1, Stages: []policies.Stage{
			{High: 100, Replicas: []policies.ReplicaID{"a"}}, {Low: 100, High: policies.Unbounded, Replicas: []policies.ReplicaID{"b", "c\"\\\n\x00é\xff"}}}},
	}
}

// oracle returns the document as encoding/json writes it.
func oracle(t *testing.T, c abi.Change, now int64) any {
	plan := func(p policies.Plan) map[string]any {
		stages := []any{}
		for _, s := range p.Stages {
			replicas := []string{}
			for _, id := range s.Replicas {
				replicas = append(replicas, string(id))
			}
			stage := map[string]any{"low": int64(s.Low), "replicas": replicas}
			if s.High != policies.Unbounded {
				stage["high"] = int64(s.High)
			}
			stages = append(stages, stage)
		}
		return map[string]any{"epoch": uint64(p.Epoch), "stages": stages}
	}
	b := testkit.Must(json.Marshal(map[string]any{"model": c.Next.Model, "now": now, "moves": adoption.CountMoves(c.Now, c.Next), "before": plan(c.Now), "after": plan(c.Next)}))
	return decode(t, b)
}

func decode(t *testing.T, b []byte) any {
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.UseNumber()
	var x any
	if err := d.Decode(&x); err != nil {
		t.Fatalf("%v in %q", err, b)
	}
	return x
}

func TestInput(t *testing.T) {
	var w Writer
	for _, c := range []abi.Change{change(), {Next: change().Next}, {}} {
		if got, want := decode(t, w.Input(c, -5)), oracle(t, c, -5); !reflect.DeepEqual(got, want) {
			t.Errorf("%v\nwant %v", got, want)
		}
	}
	c := change()
	if n := testing.AllocsPerRun(100, func() { w.Input(c, 1) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzInput(f *testing.F) {
	f.Add("m", "a", int64(0), int64(5), uint64(3))
	f.Fuzz(func(t *testing.T, model, id string, low, high int64, epoch uint64) {
		c := abi.Change{Next: policies.Plan{Model: model, Epoch: policies.Epoch(epoch), Stages: []policies.Stage{
			{Low: policies.Tokens(low), High: policies.Tokens(high), Replicas: []policies.ReplicaID{policies.ReplicaID(id), "b"}}}}}
		c.Now = c.Next
		var w Writer
		text := w.Input(c, low)
		if !utf8.Valid(text) || !reflect.DeepEqual(decode(t, text), oracle(t, c, low)) {
			t.Errorf("%q", text)
		}
	})
}

func TestResults(t *testing.T) {
	for text, want := range map[string][]abi.Denial{
		`[{"result":[]}]`: nil,
		`[{"result":[{"code":7,"stage":1},{"detail":"x","code":7},{"code":2,"stage":7}]}]`: {{Code: 2, Stage: 7}, {Code: 7, Stage: -1, Detail: "x"}, {Code: 7, Stage: 1}},
		`[{"result":[{"code":1,"detail":"` + strings.Repeat("x", 300) + `"}]}]`:            {{Code: 1, Stage: -1, Detail: strings.Repeat("x", abi.MaxDetail)}},
	} {
		if got, err := Results([]byte(text)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"": "EOF", "[]": "no answer", "[{},{}]": "no answer", "[{}]": "not a set", `[{"result":true}]`: "not a set", `[{"result":[1]}]`: "not an object",
		`[{"result":[{}]}]`: "code", `[{"result":[{"code":1.5}]}]`: "code", `[{"result":[{"code":4294967296}]}]`: "code", `[{"result":[{"code":1,"stage":8}]}]`: "stage",
		`[{"result":[{"code":1,"detail":{}}]}]`: "detail", `[{"result":[]}] x`: "behind", `[{"result":[` + strings.Repeat("1,", 64) + `1]}]`: "65 findings",
	} {
		if got, err := Results([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want %q", text, got, err, want)
		}
	}
}
