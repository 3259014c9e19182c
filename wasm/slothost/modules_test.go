package slothost

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/wasm/meter"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// alone returns Slots with the slot of one kind, and that slot. They do not run.
func alone(t testing.TB, c Config, k abi.Kind) (*Slots, *slot) {
	t.Helper()
	c.Kinds, c.Gates[k].Faults = []abi.Kind{k}, 1000
	s := testkit.Must(New(c))
	return s, s.slots[k]
}

// signedModule returns candidate 7 with a signature by key 0, of a statement that change
// may have modified, and with expected answers unless golden is nil.
func signedModule(t testing.TB, module []byte, k abi.Kind, golden []byte, change func(*sign.Statement)) lifecycle.Candidate {
	t.Helper()
	s := hosttest.Statement(7, module, k)
	if golden != nil {
		s.Golden = sign.SumOf(golden)
	}
	if change != nil {
		change(&s)
	}
	return lifecycle.Candidate{Generation: 7, Module: module, Signature: hosttest.Signed(t, s, golden, 0)}
}

// compiled compiles a module for a slot, and closes it when the test ends.
func compiled(t testing.TB, s *slot, code []byte) *module {
	t.Helper()
	m := testkit.Must(s.compile(t.Context(), signedModule(t, code, s.kind, nil, nil)))
	t.Cleanup(func() {
		testkit.NoError(t, m.close())
		if n := m.host.Instances(); n != 0 {
			t.Errorf("%d instances are left", n)
		}
	})
	return m
}

// answersOf returns the answers of a module to frames, as a signature file has them.
func answersOf(t testing.TB, m *host.Module, frames ...[]byte) []byte {
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

// selectFrame returns the frame of a call for a winner.
func selectFrame(id uint64, bids []policies.Bid) []byte {
	return testkit.Must(abi.SelectCodec.Frame(abi.Call{ID: id}, bids))
}

// TestVerify checks what a slot verifies of a module that it is about to build.
func TestVerify(t *testing.T) {
	code := hosttest.LeastLoadModule()
	forged := signedModule(t, code, abi.Select, nil, nil)
	forged.Signature = []byte(strings.Replace(string(forged.Signature), "1.2.3", "1.2.4", 1))
	other := signedModule(t, code, abi.Select, nil, nil)
	other.Configuration = []byte("unsigned words")
	for want, c := range map[string]lifecycle.Candidate{
		"":                  signedModule(t, code, abi.Select, nil, nil),
		"not signed for":    signedModule(t, code, abi.Quote, nil, nil),
		"expired":           signedModule(t, code, abi.Select, nil, func(s *sign.Statement) { s.NotAfter = 999 }),
		"the module's sha":  signedModule(t, code, abi.Select, nil, func(s *sign.Statement) { s.Digest[0]++ }),
		"built for":         signedModule(t, code, abi.Select, nil, func(s *sign.Statement) { s.ABI = "cascade-policy/2" }),
		"signed as generat": signedModule(t, code, abi.Select, nil, func(s *sign.Statement) { s.Generation = 8 }),
		"signature file: ":  {Module: code, Signature: []byte("none")},
		"signature of key ": forged,
		"is given one of 1": other,
	} {
		conf := config(t)
		conf.Now = func() time.Time { return time.Unix(1000, 0) }
		_, s := alone(t, conf, abi.Select)
		testkit.WantError(t, s.verify(c), want)
	}
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
	_, s := alone(t, config(t), abi.Select)
	for want, code := range map[string][]byte{
		"":                         hosttest.LeastLoadModule(),
		"vector 2: bid-select: tr": hosttest.LeastLoadModule(hosttest.OneIn(3, hosttest.Unreachable)),
		"vector 0: bid-select: ou": hosttest.LeastLoadModule(hosttest.Forever),
		"vector 3: bid-select: ba": hosttest.LeastLoadModule(hosttest.OneIn(4, hosttest.Result(0, 99), hosttest.Return)),
	} {
		m := compiled(t, s, code)
		testkit.WantError(t, m.warm(t.Context()), want)
		if st := m.counted(); st != (lifecycle.Status{}) {
			t.Errorf("warming is counted: %+v", st)
		}
	}
	// A grant that is too small is detected before the module is used.
	m := testkit.Must(s.compile(t.Context(), signedModule(t, hosttest.LeastLoadModule(), abi.Select, nil, func(s *sign.Statement) { s.Grants[0].Fuel = 3 })))
	testkit.WantError(t, m.warm(t.Context()), "fuel")
	testkit.NoError(t, m.close())
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if err := compiled(t, s, hosttest.LeastLoadModule()).warm(done); !errors.Is(err, context.Canceled) {
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
		var frames [][]byte
		for n, bids := range all {
			frames = append(frames, selectFrame(uint64(n+1), bids))
		}
		return answersOf(t, m, frames...)
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
		_, s := alone(t, config(t), abi.Select)
		m, err := s.compile(t.Context(), signedModule(t, code, abi.Select, text, func(s *sign.Statement) { s.Grants[0].Fuel = 100 }))
		if err == nil {
			err = errors.Join(m.warm(t.Context()), m.close())
		}
		testkit.WantError(t, err, want)
	}
}

// TestCompileRefuses checks that modules that the host refuses are refused and freed.
func TestCompileRefuses(t *testing.T) {
	_, quote := alone(t, config(t), abi.Quote)
	for want, code := range map[string][]byte{
		"cs_bid_quote_v1": hosttest.LeastLoadModule(),
		"section":         []byte("\x00asm\x01\x00\x00\x00 and no more"),
	} {
		_, err := quote.compile(t.Context(), signedModule(t, code, abi.Quote, nil, nil))
		testkit.WantError(t, err, want)
	}
	_, s := alone(t, config(t), abi.Select)
	c := signedModule(t, hosttest.LeastLoadModule(), abi.Select, nil, nil)
	c.Configuration = []byte("it takes none")
	if _, err := s.compile(t.Context(), c); err == nil {
		t.Error("configured")
	}
}

// TestReplay checks that recorded calls are replayed once and compared, and that failures are
// reported.
func TestReplay(t *testing.T) {
	slots, s := alone(t, config(t), abi.Select)
	same := compiled(t, s, hosttest.LeastLoadModule())
	none := compiled(t, s, hosttest.LeastLoadModule(hosttest.OneIn(4, hosttest.Result(1, 0), hosttest.Return)))
	trap := compiled(t, s, hosttest.LeastLoadModule(hosttest.OneIn(10, hosttest.Unreachable)))
	for round := range 3 {
		for n := range 8 {
			slots.Selector().Select([]policies.Bid{{From: "a", Load: policies.Tokens(n)}, {From: "b", Load: policies.Tokens(round)}})
		}
		slots.Selector().Select(make([]policies.Bid, 5000)) // too large for a frame: modules do not get such calls
		ctx := t.Context()
		if f, err := same.replay(ctx, nil); err != nil || f != (lifecycle.Figures{Calls: 8, Compared: 8}) {
			t.Errorf("%+v, %v", f, err)
		}
		if f, err := none.replay(ctx, nil); err != nil || f.Calls != 8 || f.Compared != 8 || f.Differ < 1 || f.Differ != f.Worse {
			t.Errorf("%+v, %v", f, err)
		}
		f, err := trap.replay(ctx, nil)
		if cause := [...]host.Cause{0, host.Trapped, host.Dead}[round]; host.CauseOf(err) != cause {
			t.Errorf("round %d: %+v, %v", round, f, err)
		}
	}
}

// TestReplayGoesOn checks that a replay which was interrupted goes on where it was, and that
// the records of another generation are its own.
func TestReplayGoesOn(t *testing.T) {
	slots, s := alone(t, config(t), abi.Select)
	m, active := compiled(t, s, hosttest.LeastLoadModule()), compiled(t, s, other(1))
	active.generation = 3
	for range 10 {
		slots.Selector().Select(bids(3, 1))
		askModule(active, &selectKind, nil, bids(4, 1))
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx    context.Context
		active *module
		want   uint64
	}{{over, nil, 0}, {t.Context(), nil, 10}, {t.Context(), active, 10}, {t.Context(), nil, 0}, {t.Context(), active, 0}} {
		if f, err := m.replay(c.ctx, c.active); err != nil || f.Calls != c.want {
			t.Errorf("%+v, %v; want %d calls", f, err, c.want)
		}
	}
}

// TestTrialRests checks that the trial runs deferred work between calls, as an active module
// does.
func TestTrialRests(t *testing.T) {
	slots, s := alone(t, config(t), abi.Select)
	m := compiled(t, s, tiring(restEvery+20))
	testkit.NoError(t, m.warm(t.Context()))
	calls := uint64(0)
	for range 30 {
		for n := range mostRecords {
			ask(t, slots, n)
		}
		f, err := m.replay(t.Context(), nil)
		if err != nil {
			t.Fatalf("after %d calls: %v", calls, err)
		}
		calls += f.Calls
	}
	if calls != 30*mostRecords {
		t.Errorf("%d calls", calls)
	}
}

// TestVectorsOfEveryKind checks that a guest in Go passes its vectors, that it answers them
// for the same fuel in a slot of one kind as when all its kinds are loaded, and that it
// answers the recorded calls of the native policies as they did.
func TestVectorsOfEveryKind(t *testing.T) {
	code, r := hosttest.Guest(t), hosttest.NewRandom(1)
	c := config(t)
	c.Cache = hosttest.Cache(t)
	all := testkit.Must(host.Load(context.Background(), host.Config{Cache: c.Cache}, code))
	defer all.Close()
	for k := abi.Partition; k < abi.NumKinds; k++ {
		slots, s := alone(t, c, k)
		for range 20 {
			testkit.NoError(t, r.Compare(k, everyPolicy(slots), hosttest.Every(hosttest.Native{})))
		}
		m := testkit.Must(s.compile(t.Context(), signedModule(t, code, k, answersOf(t, all, kinds[k].frames()...), nil)))
		if err := m.warm(t.Context()); err != nil {
			t.Errorf("%s: %v", k, err)
		}
		if f, err := m.replay(t.Context(), nil); err != nil || f != (lifecycle.Figures{Calls: 20, Compared: 20}) {
			t.Errorf("%s: %+v, %v", k, f, err)
		}
		testkit.NoError(t, m.close())
	}
}

// everyPolicy returns the policies that callers get.
func everyPolicy(s *Slots) hosttest.Policies {
	return hosttest.Policies{Partitioner: s.Partitioner("model"), Refiner: s.Refiner("node"), Quoter: s.Quoter(), Selector: s.Selector(),
		Detector: s.Detector(), Placer: s.Placer(), Guard: s.Guard("model")}
}

// TestSlowIsNotStarved checks that code that never ends is a fault in shadow as soon as its
// thread has been scheduled, although it has consumed almost none of its fuel.
func TestSlowIsNotStarved(t *testing.T) {
	c := config(t)
	c.Limits[abi.Select] = host.Limit{Fuel: meter.MaxFuel, Wall: 20 * time.Millisecond}
	slots, s := alone(t, c, abi.Select)
	testkit.Run(t, slots.watch.Run)
	m := compiled(t, s, hosttest.LeastLoadModule(hosttest.Forever))
	end := time.Now().Add(time.Minute)
	for {
		slots.Selector().Select(bids(1, 1))
		f, err := m.replay(t.Context(), nil)
		if err != nil {
			if host.CauseOf(err) != host.TimedOut || host.Starved(err) || f.Calls != 0 {
				t.Errorf("%+v, %v", f, err)
			}
			return
		}
		if f != (lifecycle.Figures{}) || time.Now().After(end) {
			t.Fatalf("%+v", f)
		}
	}
}

// fixed is a policy with constant answers.
type fixed struct {
	winner int
	at     policies.Tokens
	part   policies.Partition
	err    error
	peer   policies.ReplicaID
	excess policies.Tokens
}

func (f fixed) Select([]policies.Bid) int                               { return f.winner }
func (f fixed) Refine(policies.BoundaryView) policies.Tokens            { return f.at }
func (f fixed) Partition(policies.Workload) (policies.Partition, error) { return f.part, f.err }
func (f fixed) Place(policies.Arrival) policies.ReplicaID               { return f.peer }
func (f fixed) Excess(_, _ policies.Tokens) policies.Tokens             { return f.excess }

func (f fixed) native() Native {
	return Native{Selector: f, Refiner: f, Partitioner: f, Placer: f, Detector: f}
}

// TestComparisons checks which answers differ, and which are worse, by the host's own model.
func TestComparisons(t *testing.T) {
	w := workloads()[0]
	frames := map[abi.Kind][]byte{
		abi.Select:    selectFrame(1, []policies.Bid{{Load: 5, Start: 5}, {Load: 5, Start: 6}, {Load: 6, Start: 4}, {Load: 5, Start: 5}}),
		abi.Partition: testkit.Must(abi.PartitionCodec.Frame(abi.Call{}, w)),
		abi.Refine: testkit.Must(abi.RefineCodec.Frame(abi.Call{}, policies.BoundaryView{Boundary: 5000, High: policies.Unbounded, Peers: 1, Successors: 1,
			QoE: policytest.H200QoE(), Local: sequences(64, 1000), Next: sequences(4, 9000)})),
		abi.Place:   testkit.Must(abi.PlaceCodec.Frame(abi.Call{}, policies.Arrival{Peers: []policies.Candidate{{ID: "a"}, {ID: "b"}}})),
		abi.Outlier: testkit.Must(abi.OutlierCodec.Frame(abi.Call{}, abi.Loads{Own: 100, Mean: 10})),
	}
	best := testkit.Must(partition.Exact{}.Partition(w))
	bad := policies.Partition{Cuts: []policies.Tokens{16_384}, Counts: []int{1, 7}}
	for _, c := range []struct {
		name              string
		kind              abi.Kind
		active, candidate fixed
		differ, worse     bool
	}{
		{"the same bid", abi.Select, fixed{winner: 1}, fixed{winner: 1}, false, false},
		{"as good a bid", abi.Select, fixed{winner: 0}, fixed{winner: 3}, true, false},
		{"a later bid", abi.Select, fixed{winner: 0}, fixed{winner: 1}, true, true},
		{"a better bid", abi.Select, fixed{winner: 1}, fixed{winner: 0}, true, false},
		{"another kind of bid", abi.Select, fixed{winner: 0}, fixed{winner: 2}, true, false},
		{"no bid", abi.Select, fixed{winner: 0}, fixed{winner: -1}, true, true},
		{"a bid where there was none", abi.Select, fixed{winner: -1}, fixed{winner: 2}, true, false},
		{"the same partition", abi.Partition, fixed{part: best}, fixed{part: policies.Partition{Cuts: best.Cuts, Counts: best.Counts, Cost: 99}}, false, false},
		{"a worse partition", abi.Partition, fixed{part: best}, fixed{part: bad}, true, true},
		{"a better partition", abi.Partition, fixed{part: bad}, fixed{part: best}, true, false},
		{"no partition", abi.Partition, fixed{part: best}, fixed{err: policies.ErrInfeasible}, true, true},
		{"a partition where there was none", abi.Partition, fixed{err: policies.ErrInfeasible}, fixed{part: best}, true, false},
		{"neither has one", abi.Partition, fixed{err: policies.ErrInfeasible}, fixed{err: policies.ErrInfeasible}, false, false},
		{"the same boundary", abi.Refine, fixed{at: 2000}, fixed{at: 2000}, false, false},
		{"a worse boundary", abi.Refine, fixed{at: 2000}, fixed{at: 500}, true, true},
		{"the boundary in force, where the active policy gains", abi.Refine, fixed{at: 2000}, fixed{at: 5000}, true, true},
		{"one as good as that in force, where the active policy gains", abi.Refine, fixed{at: 2000}, fixed{at: 3000}, true, true},
		{"a part of what the active policy gains", abi.Refine, fixed{at: 2000}, fixed{at: 1850}, true, false},
		{"the boundary in force, where the active policy loses", abi.Refine, fixed{at: 1030}, fixed{at: 5000}, true, false},
		{"neither moves", abi.Refine, fixed{at: 5000}, fixed{at: 5000}, false, false},
		{"a worse boundary that is better than the active policy's", abi.Refine, fixed{at: 1030}, fixed{at: 1060}, true, false},
		{"a better boundary", abi.Refine, fixed{at: 9_000_000}, fixed{at: 2000}, true, false},
		{"another peer", abi.Place, fixed{peer: "a"}, fixed{peer: "b"}, true, false},
		{"the same peer", abi.Place, fixed{peer: "a"}, fixed{peer: "a"}, false, false},
		{"another excess", abi.Outlier, fixed{excess: 5}, fixed{excess: 6}, true, false},
		{"the same excess", abi.Outlier, fixed{excess: 5}, fixed{excess: 5}, false, false},
	} {
		var a, b host.Record
		testkit.NoError(t, c.active.native().Answer(frames[c.kind], &a))
		testkit.NoError(t, c.candidate.native().Answer(frames[c.kind], &b))
		if differ, worse := kinds[c.kind].compare(&natives, &a, &b); differ != c.differ || worse != c.worse {
			t.Errorf("%s: differs %v, worse %v", c.name, differ, worse)
		}
	}
}
