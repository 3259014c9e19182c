package rego

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage/inmem"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/guesttest"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/opa"
)

const now = 1_763_721_600 // Unix seconds

// odd has rules that use everything in the document, in ways in which OPA's two evaluators
// could differ: order of sets, numbers of 64 bits, strings.
const odd = `package cascade.plan

deny contains {"code": 1, "stage": i, "detail": s.replicas[0]} if {
	some i, s in input.after.stages
	s.low > 4611686018427387904
}

deny contains {"code": 2, "detail": input.model} if input.after.epoch % 3 == 1

deny contains {"code": 3, "detail": json.marshal(input.after.stages)} if count(input.before.stages) == 2

deny contains {"code": 4, "stage": max(wide), "detail": concat(",", sort([id | some s in input.after.stages; some id in s.replicas]))} if count(wide) > 3

deny contains {"code": 5, "detail": concat("|", sort(names))} if count(names) == 5

deny contains {"code": input.moves} if input.moves > 6

wide := {i | some i, s in input.after.stages; object.get(s, "high", s.low) - s.low > 1000}

names := {upper(id) | some s in input.before.stages; some id in s.replicas}

warn contains {"code": 9} if input.now < 0
`

// rivals has the same rules and data in OPA's evaluator, as a guard, and as a site's.
type rivals struct {
	native rego.PreparedEvalQuery
	module *host.Module
	wasm   *host.Instance
	site   *Rules
}

func meet(t testing.TB, files map[string]string, data map[string]any) rivals {
	t.Helper()
	guesttest.SkipUnderRace(t)
	ctx := context.Background()
	object := map[string]any{}
	if data != nil {
		testkit.NoError(t, json.Unmarshal(testkit.Must(json.Marshal(data)), &object))
	}
	options := []func(*rego.Rego){rego.Query("data.cascade.plan.deny"), rego.Store(inmem.NewFromObject(object)), rego.SetRegoVersion(ast.RegoV1)}
	for name, text := range files {
		options = append(options, rego.Module(name, text))
	}
	native := testkit.Must(rego.New(options...).PrepareForEval(ctx))
	site := testkit.Must(New(ctx, Config{Files: files, Data: data, Now: func() time.Time { return time.Unix(now, 0) }}))
	t.Cleanup(func() { testkit.NoError(t, site.Close()) })
	code := testkit.Must(Build(ctx, files))
	m := guesttest.Load(t, code, host.Config{})
	i := guesttest.Start(t, m)
	if data != nil {
		config := testkit.Must(json.Marshal(data))
		testkit.NoError(t, i.Configure(abi.Call{}, config))
	}
	return rivals{native, m, i, site}
}

// same compares the three on a change, and reports whether it was denied.
func (r rivals) same(t *testing.T, c abi.Change) bool {
	t.Helper()
	var w opa.Writer
	input := testkit.Must(ast.ValueFromReader(bytes.NewReader(w.Input(c, now))))
	results, err := r.native.Eval(context.Background(), rego.EvalParsedInput(input))
	if err != nil || len(results) != 1 {
		t.Fatalf("%+v: %v, %v", c, results, err)
	}
	all := testkit.Must(opa.Findings(results[0].Expressions[0].Value))
	if v, err := r.site.Plan(c); err != nil || !slices.Equal(v.Denials, all) {
		t.Fatalf("%+v:\nthe site's rules %+v, %v\nOPA's evaluator %+v", c, v.Denials, err, all)
	}
	var want abi.Denial
	if len(all) > 0 {
		if want = all[0]; want.Stage >= len(c.Next.Stages) {
			want.Stage = -1
		}
	}
	got, denied, err := r.wasm.Guard(abi.Call{Now: now * policies.Second}, c)
	if err != nil || denied != (len(all) > 0) || got != want {
		t.Fatalf("%+v:\nmodule %+v, %v, %v\nOPA's evaluator %+v", c, got, denied, err, all)
	}
	return denied
}

// random returns a random change of plans, mostly one that can occur on a host.
func random(r *rand.Rand) abi.Change {
	names := []policies.ReplicaID{"a", "b", "c", "d", "e", "f", "g", "h", "é\"\\", "\x00\x1f", "\xff", "日本", "i-0123456789abcdef", "/", "x y"}
	plan := func() policies.Plan {
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		p := policies.Plan{Model: []string{"m", "llama-3", "ü/\n"}[r.IntN(3)], Epoch: policies.Epoch(r.Uint64() >> r.IntN(64))}
		rest, low := names[:r.IntN(len(names)+1)], policies.Tokens(0)
		for n := r.IntN(policies.MaxStages + 1); n > 0; n-- {
			s := policies.Stage{Low: low, High: low + policies.Tokens(r.Int64()>>(r.IntN(55)+8))}
			k := r.IntN(len(rest) + 1)
			s.Replicas, rest = append([]policies.ReplicaID(nil), rest[:k]...), rest[k:]
			if n == 1 {
				s.High = policies.Unbounded
			}
			p.Stages, low = append(p.Stages, s), s.High
		}
		return p
	}
	c := abi.Change{Now: plan(), Next: plan()}
	c.Now.Model = c.Next.Model
	if len(c.Now.Stages) == 0 {
		c.Now = policies.Plan{}
	}
	return c
}

// TestSameAsOPA checks that the module denies what OPA's evaluator denies, for the same
// reason, with the example rules and with odd ones.
func TestSameAsOPA(t *testing.T) {
	limits := map[string]any{"limits": map[string]any{"plan": map[string]any{"moved_share": 0.1, "smallest": 0, "stages_step": 4,
		"freezes": []any{map[string]any{"from": now, "to": now}, map[string]any{"from": 5.5, "to": 1e9}}}}}
	for name, r := range map[string]rivals{
		"shipped": meet(t, ExampleRules(), nil), "limits": meet(t, ExampleRules(), limits), "odd": meet(t, map[string]string{"odd.rego": odd}, nil),
	} {
		rng := rand.New(rand.NewPCG(3, 4))
		denied, calls := 0, 1500
		for range calls {
			if r.same(t, random(rng)) {
				denied++
			}
		}
		t.Logf("%s: %d of %d denied; the last took %d ticks of %d", name, denied, calls, r.wasm.Fuel(), r.module.Limit(abi.Guard).Fuel)
		if denied < calls/20 || denied > calls-calls/20 {
			t.Errorf("%s: %d of %d are denied: the test says little", name, denied, calls)
		}
		if size, first := r.wasm.Memory(); size > 4*first {
			t.Errorf("%s: the memory grew from %d to %d bytes", name, first, size)
		}
	}
}

// TestGoldenFrames checks the frames of the specification.
func TestGoldenFrames(t *testing.T) {
	r := meet(t, ExampleRules(), nil)
	paths, _ := filepath.Glob("../abi/testdata/guard*.hex")
	if len(paths) < 2 {
		t.Fatal("there are no golden frames")
	}
	for _, path := range paths {
		text := testkit.Must(os.ReadFile(path))
		frame := testkit.Must(hex.DecodeString(strings.Join(strings.Fields(string(text)), "")))
		change, s := abi.DecodeGuardCall(frame)
		if s != abi.OK {
			t.Fatal(path, s)
		}
		r.same(t, change)
		var record host.Record
		if err := r.wasm.Replay(frame, &record); err != nil || record.Fuel == 0 {
			t.Errorf("%s: %v, %d ticks", path, err, record.Fuel)
		}
	}
}

func TestBuildRefuses(t *testing.T) {
	guesttest.SkipUnderRace(t)
	for want, text := range map[string]string{
		"a.rego:3: opa: the rules need sprintf:":     "package cascade.plan\n\ndeny contains {\"code\": 1, \"detail\": sprintf(\"%d\", [input.moves])} if input.moves > 1\n",
		"a.rego:2: opa: the rules need regex.split:": "package cascade.plan\ndeny contains {\"code\": 1} if count(regex.split(\"x\", input.model)) > 1\n",
		`no rule "deny" in package cascade.plan`:     "package cascade.slot\ndeny contains {\"code\": 1}\n",
		"undefined function time.now_ns":             "package cascade.plan\ndeny contains {\"code\": 1} if time.now_ns() > 1\n",
		"a.rego:2":                                   "package cascade.plan\ndeny contains",
		"rego: no rule":                              "package cascade.plan\nwarn contains {\"code\": 1}\n",
	} {
		code, err := Build(context.Background(), map[string]string{"a.rego": text})
		if err == nil || !strings.Contains(err.Error(), want) || code != nil {
			t.Errorf("%d bytes, %v; want %q", len(code), err, want)
		}
	}
}

// TestReproducible checks that the same rules give the same bytes.
func TestReproducible(t *testing.T) {
	guesttest.SkipUnderRace(t)
	a := testkit.Must(Build(context.Background(), ExampleRules()))
	for range 3 {
		if b, err := Build(context.Background(), ExampleRules()); err != nil || !bytes.Equal(a, b) {
			t.Fatalf("other bytes: %v", err)
		}
	}
}
