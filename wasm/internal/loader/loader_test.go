package loader

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/wasm/internal/cachedir"
	"github.com/cascadeinfer/cascade/wasm/internal/swap"
	"github.com/cascadeinfer/cascade/wasm/policy"
	"github.com/cascadeinfer/cascade/wasm/promotion"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var natives = func(n hosttest.Native) policy.Native {
	return policy.Native{Partitioner: n, Refiner: n, Quoter: n, Selector: n, Detector: n, Placer: n, Guard: n}
}(hosttest.Native{})

func config(k abi.Kind) Config { return Config{Kind: k, Native: natives, Ring: hosttest.Ring} }

// offer returns a candidate with a signature by key 0, of a statement that change may have
// modified.
func offer(t testing.TB, module []byte, k abi.Kind, change func(*sign.Statement)) swap.Candidate {
	t.Helper()
	return expecting(t, module, k, nil, change)
}

// expecting returns such a candidate with expected answers.
func expecting(t testing.TB, module []byte, k abi.Kind, golden []byte, change func(*sign.Statement)) swap.Candidate {
	t.Helper()
	s := hosttest.Statement(7, module, k)
	if golden != nil {
		s.Golden = sign.SumOf(golden)
	}
	if change != nil {
		change(&s)
	}
	return swap.Candidate{Offer: promotion.Offer{Generation: 7}, Module: module, Signature: hosttest.Signed(t, s, golden, 0)}
}

// answersOf returns the answers of a module to frames, as a signature file has them.
func answersOf(t testing.TB, m *host.Module, frames [][]byte) []byte {
	t.Helper()
	calls := make([]calllog.Call, len(frames))
	for n := range frames {
		calls[n].Frame = frames[n]
	}
	answered, err := calllog.Answer(context.Background(), m.Instantiate, calls)
	if err != nil || len(answered) != len(frames) {
		t.Fatalf("%d answers, %v", len(answered), err)
	}
	for i := range answered {
		answered[i].Answer.Module = [32]byte{}
	}
	var text strings.Builder
	testkit.NoError(t, calllog.Write(&text, answered))
	return []byte(text.String())
}

// made verifies and compiles a candidate. It closes the module when the test ends.
func made(t testing.TB, c Config, offer swap.Candidate, fault func()) swap.Module[Policy] {
	t.Helper()
	l := testkit.Must(New(c))
	testkit.NoError(t, l.Verify(context.Background(), offer))
	m := testkit.Must(l.Compile(context.Background(), offer, fault))
	t.Cleanup(func() { testkit.NoError(t, m.Close()) })
	return m
}

func TestVerify(t *testing.T) {
	code := hosttest.LeastLoadModule()
	now := time.Unix(1000, 0)
	for want, c := range map[string]swap.Candidate{
		"":                  offer(t, code, abi.Select, nil),
		"not signed for":    offer(t, code, abi.Quote, nil),
		"expired":           offer(t, code, abi.Select, func(s *sign.Statement) { s.NotAfter = 999 }),
		"the module's sha":  offer(t, code, abi.Select, func(s *sign.Statement) { s.Digest[0]++ }),
		"built for":         offer(t, code, abi.Select, func(s *sign.Statement) { s.ABI = "cascade-policy/2" }),
		"signed as 8":       offer(t, code, abi.Select, func(s *sign.Statement) { s.Generation = 8 }),
		"older than":        offer(t, code, abi.Select, func(s *sign.Statement) { s.Name = "old" }),
		"signature file: ":  {Module: code, Signature: []byte("none")},
		"signature of key ": forged(t, code),
		"is given one of 1": func() swap.Candidate {
			c := offer(t, code, abi.Select, nil)
			c.Configuration = []byte("unsigned words")
			return c
		}(),
	} {
		conf := config(abi.Select)
		conf.Now = func() time.Time { return now }
		conf.Admit = func(s sign.Statement) error {
			if s.Name == "old" {
				return sign.ErrReplayed
			}
			return nil
		}
		l := testkit.Must(New(conf))
		testkit.WantError(t, l.Verify(context.Background(), c), want)
	}
	for _, c := range []Config{{Native: natives, Ring: hosttest.Ring}, {Kind: abi.Select, Native: natives}} {
		if _, err := New(c); err == nil {
			t.Errorf("no error for %+v", c)
		}
	}
}

// forged returns a file whose statement was changed after it was signed.
func forged(t *testing.T, code []byte) swap.Candidate {
	c := offer(t, code, abi.Select, nil)
	c.Signature = []byte(strings.Replace(string(c.Signature), "1.2.3", "1.2.4", 1))
	return c
}

// TestGrantLowersLimits checks that a grant lowers limits and cannot raise them.
func TestGrantLowersLimits(t *testing.T) {
	h := host.Limit{Fuel: 1000, Wall: time.Millisecond, Pages: 10, Frame: 77}
	by := host.DefaultLimit(abi.Select)
	for _, c := range []struct {
		l    host.Limit
		g    sign.Grant
		want host.Limit
	}{
		{h, sign.Grant{}, h},
		{h, sign.Grant{Fuel: 1 << 63, Micros: 1 << 63, Pages: 1 << 63}, h},
		{h, sign.Grant{Fuel: 999, Micros: 999, Pages: 9}, host.Limit{Fuel: 999, Wall: 999 * time.Microsecond, Pages: 9, Frame: 77}},
		{host.Limit{}, sign.Grant{Fuel: 1}, host.Limit{Fuel: 1, Wall: by.Wall, Pages: by.Pages}},
	} {
		if got := least(c.l, by, c.g); got != c.want {
			t.Errorf("%+v of %+v: %+v, want %+v", c.g, c.l, got, c.want)
		}
	}
}

// TestWarmRejects covers modules that do not answer, or not deterministically.
func TestWarmRejects(t *testing.T) {
	for want, code := range map[string][]byte{
		"":                         hosttest.LeastLoadModule(),
		"vector 2: bid-select: tr": hosttest.LeastLoadModule(hosttest.OneIn(3, hosttest.Unreachable)),
		"vector 0: bid-select: ou": hosttest.LeastLoadModule(hosttest.Forever),
		"vector 3: bid-select: ba": hosttest.LeastLoadModule(hosttest.OneIn(4, hosttest.Result(0, 99), hosttest.Return)),
	} {
		m := made(t, config(abi.Select), offer(t, code, abi.Select, nil), nil)
		testkit.WantError(t, m.Warm(context.Background()), want)
	}
	// A grant that is too small is detected before the module is used.
	m := made(t, config(abi.Select), offer(t, hosttest.LeastLoadModule(), abi.Select, func(s *sign.Statement) { s.Grants[0].Fuel = 3 }), nil)
	testkit.WantError(t, m.Warm(context.Background()), "fuel")
	done, cancel := context.WithCancel(context.Background())
	cancel()
	m = made(t, config(abi.Select), offer(t, hosttest.LeastLoadModule(), abi.Select, nil), nil)
	if err := m.Warm(done); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestWarmExpects checks that a module that was signed with expectations must give these
// answers, for the same fuel.
func TestWarmExpects(t *testing.T) {
	code := hosttest.LeastLoadModule()
	golden := func(code []byte, all ...[]policies.Bid) []byte {
		t.Helper()
		m := testkit.Must(host.Load(context.Background(), host.Config{}, code))
		defer m.Close()
		var frames vectorList
		for _, bids := range all {
			add(&frames, &abi.SelectCodec, bids)
		}
		return answersOf(t, m, frames)
	}
	bids := []policies.Bid{{From: "a", Load: 5}, {From: "b", Load: 3}}
	good := golden(code, bids, bids[:1], nil)
	for want, text := range map[string][]byte{
		"":                              good,
		"expected frame 1: not as":      []byte(strings.Replace(string(good), `"result":"0x0000000000000000"`, `"result":"0x0000000000000001"`, 1)),
		"expected frame 0: bid-sel":     golden(hosttest.LeastLoadModule(), make([]policies.Bid, 200)),
		"ticks, and":                    golden(hosttest.LeastLoadModule(hosttest.Loop()), bids),
		"expectations: line 1: must be": []byte("none"),
	} {
		l := testkit.Must(New(config(abi.Select)))
		c := expecting(t, code, abi.Select, text, func(s *sign.Statement) { s.Grants[0].Fuel = 100 })
		m, err := l.Compile(context.Background(), c, nil)
		if err == nil {
			err = errors.Join(m.Warm(context.Background()), m.Close())
		}
		testkit.WantError(t, err, want)
	}
}

// TestCompileRefuses checks that Compile refuses modules that the host refuses, and frees
// them.
func TestCompileRefuses(t *testing.T) {
	for want, code := range map[string][]byte{
		"cs_bid_quote_v1": hosttest.LeastLoadModule(),
		"section":         []byte("\x00asm\x01\x00\x00\x00 and no more"),
	} {
		k := abi.Quote
		l := testkit.Must(New(config(k)))
		_, err := l.Compile(context.Background(), offer(t, code, k, nil), nil)
		testkit.WantError(t, err, want)
	}
	l := testkit.Must(New(config(abi.Select)))
	c := offer(t, hosttest.LeastLoadModule(), abi.Select, nil)
	c.Configuration = []byte("it takes none")
	if _, err := l.Compile(context.Background(), c, nil); err == nil {
		t.Error("configured")
	}
}

// TestReplay checks that recorded calls are replayed once and compared, and that failures are
// reported.
func TestReplay(t *testing.T) {
	linked := policy.NewNativeRecorder(natives, 1, 0, nil)
	c := config(abi.Select)
	c.InForce = func(use func(lifecycle.Generation, Policy)) { use(0, linked) }
	same := made(t, c, offer(t, hosttest.LeastLoadModule(), abi.Select, nil), nil)
	none := made(t, c, offer(t, hosttest.LeastLoadModule(hosttest.OneIn(4, hosttest.Result(1, 0), hosttest.Return)), abi.Select, nil), nil)
	trap := made(t, c, offer(t, hosttest.LeastLoadModule(hosttest.OneIn(10, hosttest.Unreachable)), abi.Select, nil), nil)
	for round := range 3 {
		for n := range 8 {
			linked.Select([]policies.Bid{{From: "a", Load: policies.Tokens(n)}, {From: "b", Load: policies.Tokens(round)}})
		}
		linked.Select(make([]policies.Bid, 5000)) // too large for a frame: modules do not get such calls
		ctx := context.Background()
		if f, err := same.Replay(ctx); err != nil || f != (lifecycle.Figures{Calls: 8, Compared: 8}) {
			t.Errorf("%+v, %v", f, err)
		}
		if f, err := none.Replay(ctx); err != nil || f != (lifecycle.Figures{Calls: 8, Differ: 2, Worse: 2, Compared: 8}) {
			t.Errorf("%+v, %v", f, err)
		}
		f, err := trap.Replay(ctx)
		if cause := [...]host.Cause{0, host.Trapped, host.Dead}[round]; host.CauseOf(err) != cause {
			t.Errorf("round %d: %+v, %v", round, f, err)
		}
	}
}

// TestFaultIsReported checks that every call that the module fails to answer is
// reported, and that the policy's own breaker does not open.
func TestFaultIsReported(t *testing.T) {
	faults := 0
	m := made(t, config(abi.Select), offer(t, hosttest.LeastLoadModule(hosttest.OneIn(2, hosttest.Result(5, 0), hosttest.Return)), abi.Select, nil), func() { faults++ })
	for n := range 100 {
		if got := m.Policy.Select([]policies.Bid{{Load: 9}, {Load: policies.Tokens(n)}}); got != (bidask.LeastLoad{}).Select([]policies.Bid{{Load: 9}, {Load: policies.Tokens(n)}}) {
			t.Error("wrong")
		}
	}
	if st := m.Policy.(*policy.Policy).Stats(); faults == 0 || uint64(faults) != st.Faults[host.Refused] || st.Open {
		t.Errorf("%d faults: %+v", faults, st)
	}
}

// TestCacheIsBounded checks that the least recently compiled module is removed.
func TestCacheIsBounded(t *testing.T) {
	c := config(abi.Select)
	c.Cache, c.CacheModules = t.TempDir(), 2
	l := testkit.Must(New(c))
	for n := range int64(5) {
		m := testkit.Must(l.Compile(context.Background(), offer(t, hosttest.LeastLoadModule(hosttest.OneIn(1<<40+n, hosttest.Unreachable)), abi.Select, nil), nil))
		testkit.NoError(t, m.Close())
	}
	if kept, err := cachedir.Evict(c.Cache, cachedir.Limits{}); err != nil || kept != 2 {
		t.Errorf("%d are kept: %v", kept, err)
	}
}

// TestTrialRests checks that the trial runs deferred work between calls, as an active module
// does.
func TestTrialRests(t *testing.T) {
	count := hosttest.Cat(hosttest.I32(0), hosttest.Load32(8))
	tires := hosttest.Policy(
		hosttest.LeastLoad(hosttest.I32(0), count, hosttest.I32(1), hosttest.Add, hosttest.Store32(8),
			count, hosttest.I32(restEvery+20), hosttest.Op(0x4b), hosttest.If(hosttest.Unreachable)),
		hosttest.Function(abi.ExportDeferred, nil, hosttest.I32(0), hosttest.I32(0), hosttest.Store32(8), hosttest.I64(0))).Encode()
	linked := policy.NewNativeRecorder(natives, 1, 0, nil)
	c := config(abi.Select)
	c.InForce = func(use func(lifecycle.Generation, Policy)) { use(0, linked) }
	for k := range c.Limits {
		c.Limits[k].Wall = time.Hour
	}
	m := made(t, c, offer(t, tires, abi.Select, nil), nil)
	testkit.NoError(t, m.Warm(context.Background()))
	r, calls := hosttest.NewRandom(1), uint64(0)
	for range 60 {
		record(t, linked, abi.Select, r, policy.DefaultKeep)
		f, err := m.Replay(context.Background())
		if err != nil {
			t.Fatalf("after %d calls: %v", calls, err)
		}
		calls += f.Calls
	}
	if calls != 60*policy.DefaultKeep {
		t.Errorf("%d calls", calls)
	}
}

// TestGuardsFailClosed checks that a plan that a module's guard cannot judge is denied,
// whatever the native guard decides.
func TestGuardsFailClosed(t *testing.T) {
	faults := 0
	fails := hosttest.Policy(hosttest.Function("cs_guard_v1", nil, hosttest.Result(5, 0))).Encode()
	m := made(t, config(abi.Guard), offer(t, fails, abi.Guard, nil), func() { faults++ })
	d, denied := m.Policy.Guard(abi.Change{Next: policies.OneStagePlan("m", []policies.ReplicaID{"a"})})
	if !denied || d.Stage != -1 || d.Detail == "" || faults != 1 {
		t.Errorf("denied %v: %+v, %d faults", denied, d, faults)
	}
}

// TestEveryKind checks that a guest in Go passes its vectors, that it answers them for the
// same fuel in a slot of one kind as when all its kinds are loaded, and that it answers the
// recorded calls of the native policies as they did.
func TestEveryKind(t *testing.T) {
	code := hosttest.Guest(t)
	dir := hosttest.Cache(t)
	all := testkit.Must(host.Load(context.Background(), host.Config{Cache: dir}, code))
	defer all.Close()
	r := hosttest.NewRandom(1)
	for k := abi.Partition; k < abi.NumKinds; k++ {
		linked := policy.NewNativeRecorder(natives, 1, 0, nil)
		record(t, linked, k, r, 20)
		c := config(k)
		c.Cache = dir
		c.InForce = func(use func(lifecycle.Generation, Policy)) { use(0, linked) }
		m := made(t, c, expecting(t, code, k, answersOf(t, all, vectors(k)), nil), nil)
		if err := m.Warm(context.Background()); err != nil {
			t.Errorf("%s: %v", k, err)
		}
		if f, err := m.Replay(context.Background()); err != nil || f != (lifecycle.Figures{Calls: 20, Compared: 20}) {
			t.Errorf("%s: %+v, %v", k, f, err)
		}
	}
}

// record makes and records random calls of a kind.
func record(t *testing.T, p Policy, k abi.Kind, r hosttest.Random, calls int) {
	t.Helper()
	for range calls {
		testkit.NoError(t, r.Compare(k, hosttest.Every(p), hosttest.Every(hosttest.Native{})))
	}
}
