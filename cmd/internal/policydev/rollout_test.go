package policydev

import (
	"compress/gzip"
	"crypto/ed25519"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	migrator "github.com/cascadeinfer/cascade/migrator/market"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/guest/guesttest"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/sign"
	"github.com/cascadeinfer/cascade/wasm/slothost"
)

// TestDefaultGates takes every policy that "policy new" writes, and every example, through the
// slots of a host with default gates and limits. It checks that the policy is not blocked in
// shadow, and becomes active. The calls in testdata/fleet.jsonl.gz were written by "policy
// records" from eight emulated replicas in four to six stages, half of them under overload. Most
// policies in Go run with CASCADE_TEST_ALL=1 only, since a host takes seconds to compile one: their kinds
// are those of policies in C, and TestNewPolicies runs their own tests.
func TestDefaultGates(t *testing.T) {
	guesttest.SkipUnderRace(t)
	questions := recorded(t)
	fleet := defaultFleet(t)
	try := func(name string, slow bool, build func(t *testing.T) string, configuration string) {
		t.Run(name, func(t *testing.T) {
			if slow {
				testkit.SkipSlow(t)
			}
			dir, out := build(t), filepath.Join(t.TempDir(), "policy.wasm")
			b, err := Build(t.Context(), dir, out, "")
			if err != nil && strings.Contains(err.Error(), "no C compiler") {
				b, err = Build(t.Context(), dir, out, zigHere(t)+" -m ziglang cc")
			}
			testkit.NoError(t, err)
			code, err := ReadModule(b.File)
			testkit.NoError(t, err)
			m, err := host.Load(t.Context(), host.Config{Cache: cacheDir()}, code)
			testkit.NoError(t, err)
			kinds := m.Kinds()
			testkit.NoError(t, m.Close())
			for _, k := range kinds {
				if k != abi.Configure {
					newTrial(t, fleet, k, questions[k]).rollOut(code, []byte(configuration))
				}
			}
		})
	}
	begin := func(kind, lang string) {
		try(kind+" in "+lang, lang == langGo && kind != "bid" && kind != "partition", func(t *testing.T) string { return newPolicy(t, kind, lang) }, "")
	}
	for _, kind := range NewKinds() {
		begin(kind, langGo)
		begin(kind, langC)
	}
	begin("guard", LangRego)
	for name, configuration := range map[string]string{
		"refiner": "", "nvlink": "node 2\nslower 10\n", "bid-c/src": "", "guard-rego": `{"guard": {"stages": 8}}`,
	} {
		try("example "+name, name == "nvlink", func(*testing.T) string { return filepath.Join("..", "..", "..", "examples", name) }, configuration)
	}
}

// recorded returns the recorded frames of a fleet, by kind.
func recorded(t *testing.T) (by [abi.NumKinds][][]byte) {
	t.Helper()
	f, err := os.Open("testdata/fleet.jsonl.gz")
	testkit.NoError(t, err)
	defer f.Close()
	text, err := gzip.NewReader(f)
	testkit.NoError(t, err)
	frames, err := calllog.Read(text)
	testkit.NoError(t, err)
	for _, one := range frames {
		k := abi.KindOf(one.Frame)
		by[k] = append(by[k], one.Frame)
	}
	return by
}

// signedFleet is a fleet with default gates and limits, with the key of its operator.
type signedFleet struct {
	*wiring.Fleet
	secret ed25519.PrivateKey
}

func defaultFleet(t *testing.T) signedFleet {
	t.Helper()
	public, secret, err := ed25519.GenerateKey(nil)
	testkit.NoError(t, err)
	c := config.Fleet{
		Models:   []config.Model{{Name: "m", Context: 131072, Profile: "rtxpro6000-llama-3.1-8b"}},
		Replicas: []config.Replica{{ID: "r0", Address: "127.0.0.1:0", Peer: "127.0.0.1:0", Engine: "http://127.0.0.1:0"}},
		Control:  config.Control{Listen: "127.0.0.1:0", Admin: "127.0.0.1:0"},
	}
	if errs := c.Validate(); len(errs) > 0 {
		t.Fatal(errs[0])
	}
	f, err := wiring.Resolve(c, t.TempDir())
	testkit.NoError(t, err)
	f.Trusted = []ed25519.PublicKey{public}
	return signedFleet{&f, secret}
}

// trial is a slot of a host whose clock the test controls.
type trial struct {
	*testing.T
	kind      abi.Kind
	fleet     signedFleet
	set       *slothost.Slots
	now       atomic.Int64 // microseconds since 1970
	questions [][]byte
	asked     int
}

func newTrial(t *testing.T, f signedFleet, k abi.Kind, questions [][]byte) *trial {
	t.Helper()
	if len(questions) == 0 {
		t.Fatalf("no question of %s was recorded", k)
	}
	p, err := f.Policies(identity.Migrator, "r0", 1)
	testkit.NoError(t, err)
	r := &trial{T: t, kind: k, fleet: f, questions: questions}
	r.now.Store(time.Now().UnixMicro())
	if r.set, err = slothost.New(slothost.Config{
		Kinds: []abi.Kind{k}, Native: f.NativePolicies(migrator.Config{}), Ring: p.Ring, Limits: p.Limits, Gates: p.Gates, Cache: cacheDir(), Every: p.RecordEvery,
		Tick: time.Millisecond, Instances: 1, Now: func() time.Time { return time.UnixMicro(r.now.Load()) },
	}); err != nil {
		t.Fatal(err)
	}
	testkit.Run(t, r.set.Run)
	return r
}

// scope is the scope of the canary of a policy that decides for many requests.
const scope = "first"

// rollOut pushes a module to shadow, observes it there, and promotes it.
func (r *trial) rollOut(code, configuration []byte) {
	r.Helper()
	file := sign.File{Statement: sign.Statement{
		Fleet: sign.DefaultFleet, Digest: lifecycle.Sum(code), ABI: abi.Name, Name: "mine", Version: "1.0.0", Generation: 1, Grants: []sign.Grant{{Kind: r.kind}},
	}}
	if len(configuration) > 0 {
		file.Statement.Configuration = lifecycle.Sum(configuration)
	}
	file, err := sign.Sign(file, r.fleet.secret)
	testkit.NoError(r, err)
	signature, err := file.Encode()
	testkit.NoError(r, err)
	for _, goal := range []lifecycle.Goal{lifecycle.ToShadow, lifecycle.ToCanary, lifecycle.ToActive} {
		c := lifecycle.Candidate{Generation: 1, Goal: goal, Module: code, Signature: signature, Configuration: configuration}
		switch slot := lifecycle.Kind(r.kind.String()); {
		case slot.PerRequest() && goal == lifecycle.ToCanary:
			c.Permille = 10
		case !slot.PerRequest() && goal > lifecycle.ToShadow:
			c.Scope = scope
		}
		testkit.NoError(r, r.set.Apply(lifecycle.SlotSpec{Kind: lifecycle.Kind(r.kind.String()), Candidates: []lifecycle.Candidate{c}}))
		r.reach(goal)
	}
}

// reach makes calls until the module has reached its goal with the figures required there.
func (r *trial) reach(goal lifecycle.Goal) {
	r.Helper()
	begin, last, many := time.Now(), lifecycle.Status{}, 4
	if lifecycle.Kind(r.kind.String()).PerRequest() {
		many = 40
	}
	for enough := false; !enough; runtime.Gosched() {
		if time.Since(begin) > time.Minute {
			r.Fatalf("%s never was %s: %+v", r.kind, goal, last)
		}
		for range many {
			r.ask()
		}
		time.Sleep(time.Millisecond) // for the slot's tick
		r.now.Add(time.Second.Microseconds())
		for _, l := range r.set.Status()[0].Modules {
			last = l
			switch {
			case l.Blocked != "" || l.Phase == lifecycle.Rejected:
				r.Fatalf("%s, to be %s: %+v", r.kind, goal, l)
			case goal == lifecycle.ToActive:
				enough = l.Phase == lifecycle.Active
			case l.Phase.String() == goal.String():
				enough = l.Reason == "" && l.Inconclusive == "" && l.Figures.Compared >= slothost.DefaultJudged
			}
		}
	}
	f := last.Figures
	r.Logf("%s is %s: of %d calls %d were compared, %d differ, %d are worse; %d faults", r.kind, goal, f.Calls, f.Compared, f.Differ, f.Worse, last.Faults)
}

// ask makes the next recorded call, for a new request.
func (r *trial) ask() {
	frame := r.questions[r.asked%len(r.questions)]
	r.asked++
	n := policies.Tokens(r.asked)
	switch r.kind {
	case abi.Partition:
		var w policies.Workload
		if s := abi.DecodePartitionCall(frame, &w); s != abi.OK {
			r.Fatal(s)
		}
		_, _ = r.set.Partitioner(scope).Partition(w)
	case abi.Refine:
		b, _, _ := abi.DecodeRefineCall(frame, nil)
		r.set.Refiner(scope).Refine(b)
	case abi.Quote:
		a, _ := abi.DecodeQuoteCall(frame)
		a.Migration.Request = fmt.Sprint(n)
		r.set.Quoter().Quote(a.Occupancy, a.Migration)
	case abi.Select:
		bids, _ := abi.DecodeSelectCall(frame, nil)
		for i := range bids {
			bids[i].Load += n
		}
		r.set.Selector().Select(bids)
	case abi.Outlier:
		own, mean, _ := abi.DecodeOutlierCall(frame)
		r.set.Detector().Excess(own+n, mean)
	case abi.Place:
		a, _ := abi.DecodePlaceCall(frame, nil)
		a.Request.ID = fmt.Sprint(n)
		r.set.Placer().Place(a)
	case abi.Guard:
		c, _ := abi.DecodeGuardCall(frame)
		r.set.Guard(scope).Guard(c)
	}
}
