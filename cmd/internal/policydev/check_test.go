package policydev

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/internal/testkit"
	migrator "github.com/cascadeinfer/cascade/migrator/market"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// deciding returns all kinds that decide.
func deciding() (kinds []abi.Kind) {
	for k := abi.Configure + 1; k < abi.NumKinds; k++ {
		kinds = append(kinds, k)
	}
	return kinds
}

// subject writes an assembled module that decides bids, and opens it.
func subject(t *testing.T, functions ...hosttest.Func) *Subject {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	path := filepath.Join(t.TempDir(), "policy.wasm")
	m := hosttest.Policy(functions...)
	m.Most = 0
	testkit.NoError(t, os.WriteFile(path, m.Encode(), 0o666))
	s, err := Open(context.Background(), path, nil, nil)
	testkit.NoError(t, err)
	t.Cleanup(func() {
		if n := s.Module.Instances(); n != 0 {
			t.Errorf("%d instances are left", n)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func selects(body ...[]byte) hosttest.Func {
	return hosttest.Function(abi.Select.Export(), []byte{hosttest.TypeI32, hosttest.TypeI64}, body...)
}

// strides is hosttest.LeastLoad with a constant number of bytes from one bid to the next.
func strides(n int32) hosttest.Func {
	f := hosttest.LeastLoad()
	f.Body = bytes.Replace(f.Body, hosttest.Cat(hosttest.I32(0), hosttest.Load32(hosttest.Arena+32)), hosttest.I32(n), 1)
	return f
}

// TestChecksFind checks that each check detects its fault.
func TestChecksFind(t *testing.T) {
	for _, c := range []struct {
		name   string
		module hosttest.Func
		check  string
		text   string
	}{
		{"it answers whatever is asked", selects(hosttest.Result(1, 0)), "golden vectors", "unknown flag"},
		{"it takes records for as long as today's", strides(24), "golden vectors", "rec_stride"},
		{"it takes no bid", selects(hosttest.Result(1, 0)), "same as native", "bid-least-load decides: replica-"},
		{"it never ends", hosttest.LeastLoad(hosttest.Forever), "fuel", "out of fuel"},
		{"it names no bid", selects(hosttest.Result(0, 1000)), "fuel", "the index is that of a bid"},
		{"it gives up", selects(hosttest.Result(5, 0)), "leaks", "gave up"},
		{"it wants memory now and then", hosttest.LeastLoad(hosttest.OneIn(100, hosttest.I32(1), hosttest.Grow, hosttest.Drop)), "leaks", "kept from call to call"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := Test(context.Background(), subject(t, c.module), TestConfig{Native: "least-load", Calls: 1000, Random: 50})
			testkit.NoError(t, err)
			i := slices.IndexFunc(r.Checks, func(k Check) bool { return k.Name == c.check })
			if got := r.Checks[i]; got.Outcome != Failed || !strings.Contains(got.Text, c.text) || r.Failed == 0 {
				t.Errorf("%s: %s: %q", got.Name, got.Outcome, got.Text)
			}
		})
	}
}

// TestLinesOfModule checks that the lines that a module logs during its tests are passed on.
func TestLinesOfModule(t *testing.T) {
	m := hosttest.Policy(selects(hosttest.I32(2), hosttest.I32(0), hosttest.I32(0), hosttest.Call(0), hosttest.Result(1, 0)))
	m.Imports = []hosttest.Import{{Module: abi.ImportModule, Name: abi.ImportLog, Params: []byte{hosttest.TypeI32, hosttest.TypeI32, hosttest.TypeI32}}}
	path := filepath.Join(t.TempDir(), "policy.wasm")
	testkit.NoError(t, os.WriteFile(path, m.Encode(), 0o666))
	log := new(testkit.Log)
	s, err := Open(t.Context(), path, nil, log.Logger())
	testkit.NoError(t, err)
	defer s.Close()
	if _, err := Test(t.Context(), s, TestConfig{Calls: 10, Random: 10}); err != nil || log.Count("level=WARN") == 0 {
		t.Errorf("%v, %s", err, log)
	}
}

// TestGoodModule checks that a good module passes every check that depends only on fields that
// it reads.
func TestGoodModule(t *testing.T) {
	s := subject(t, hosttest.LeastLoad())
	frames, err := randomFrames(7, abi.Select, 40)
	testkit.NoError(t, err)
	played, err := Replay(context.Background(), s, frames)
	testkit.NoError(t, err)
	frames = calllog.FromRecords(played.Records)
	golden, n, err := Expect(context.Background(), s, frames, 1)
	if err != nil || n != maxExpected || calllog.Deflated(golden) > maxDeflated {
		t.Fatalf("%d answers, %v", n, err)
	}
	r, err := Test(context.Background(), s, TestConfig{Native: "bid-least-load", Calls: 1000, Random: 50, Frames: frames, Golden: golden})
	testkit.NoError(t, err)
	for _, c := range r.Checks {
		if c.Outcome != Passed && c.Name != "golden vectors" {
			t.Errorf("%s: %s: %s", c.Name, c.Outcome, c.Text)
		}
	}
	// An answer that changed is reported.
	frames[3].Answer.Result++
	if r, err = Test(context.Background(), s, TestConfig{Calls: 10, Random: 10, Frames: frames}); err != nil {
		t.Fatal(err)
	}
	if c := r.Checks[len(r.Checks)-1]; c.Outcome != Failed || !strings.HasPrefix(c.Text, "frame 3: ") {
		t.Errorf("%+v", c)
	}
	// So is another module, although it has the same answers.
	r, err = Test(context.Background(), subject(t, hosttest.LeastLoad(hosttest.Loop())), TestConfig{Calls: 10, Random: 10, Golden: golden})
	if c := r.Checks[1]; err != nil || c.Name != "expected" || c.Outcome != Failed || !strings.Contains(c.Text, "another module") {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := Test(context.Background(), s, TestConfig{Native: "refine-paper"}); err == nil || !strings.Contains(err.Error(), "bid-paper") {
		t.Errorf("a built-in policy of another kind: %v", err)
	}
	all, err := Bench(context.Background(), s, "", 10*time.Millisecond)
	if err != nil || len(all) != 1 || all[0].Native != "bid-least-load" || all[0].Wasm <= 0 || all[0].Beside <= 0 || all[0].Fuel99 < all[0].Fuel50 {
		t.Errorf("%+v, %v", all, err)
	}
	// A fault does not end a replay: it continues on a new instance.
	played, err = Replay(context.Background(), subject(t, hosttest.LeastLoad(hosttest.OneIn(2, hosttest.Unreachable))), frames)
	testkit.NoError(t, err)
	c := Compare(Recorded(frames), played.Records, 2)
	if c.Same+c.Differ != len(frames) || c.B.Faults[host.Trapped.String()] < 10 || len(c.Shown) != 2 {
		t.Errorf("%+v", c)
	}
}

// TestBuiltinsAnswer checks that the built-in policies answer frames of all their kinds, directly
// and from a call log, and that the first of a kind decides as a fleet does by default.
func TestBuiltinsAnswer(t *testing.T) {
	fleet := defaultFleet(t).NativePolicies(migrator.Config{})
	for _, k := range deciding() {
		frames, err := randomFrames(3, k, 50)
		testkit.NoError(t, err)
		b, ok := defaultBuiltin(k)
		if ok == (k == abi.Guard) {
			t.Errorf("%v: a built-in policy: %v", k, ok)
		}
		if !ok {
			continue
		}
		played, err := ReplayNative(context.Background(), b.name, frames)
		testkit.NoError(t, err)
		if r := Recheck(fleet, played.Records); r.Calls != len(frames) || r.Different > 0 {
			t.Errorf("%s is not the default of fleets: %+v", b.name, r)
		}
		for n := range frames {
			if played.Records[n].Cause != 0 {
				t.Fatalf("%s, frame %d: %s", b.name, n, describeDecision(&played.Records[n]))
			}
			frames[n].Answer = &played.Records[n]
		}
		var file bytes.Buffer
		testkit.NoError(t, calllog.Write(&file, frames))
		again, err := calllog.Read(&file)
		testkit.NoError(t, err)
		if c := Compare(Recorded(again), played.Records, 1); c.Same != len(frames) {
			t.Errorf("%v: %+v", k, c)
		}
	}
}

// TestNewerFrames checks that the present decoder reads the same arguments from the frame of a
// later host.
func TestNewerFrames(t *testing.T) {
	for _, k := range deciding() {
		vectors, err := goldenVectors(k)
		if err != nil || len(vectors) == 0 {
			t.Fatalf("%v: %d vectors, %v", k, len(vectors), err)
		}
		b, ok := defaultBuiltin(k)
		if !ok {
			continue
		}
		for name, frame := range vectors {
			var now, later host.Record
			_ = b.Replay(frame, &now) // one vector has invalid arguments
			_ = b.Replay(laterLayout(frame), &later)
			if !calllog.SameAnswer(&now, &later) {
				t.Errorf("%s: %s, later %s", name, describeDecision(&now), describeDecision(&later))
			}
		}
	}
}
