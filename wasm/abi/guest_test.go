package abi

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/outlier"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/policies/refine"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// mostGuestBytes bounds a guest in standard Go with five policies. A dependency
// on fmt or reflect would add a megabyte and more.
const mostGuestBytes = 2 << 20

// guest is a small host with a metered instance of the guest in testdata.
type guest struct {
	mod          api.Module
	at, size     uint32
	fuel, budget api.MutableGlobal
	fns          [NumKinds]api.Function
	slice        int64
	stack        [1]uint64
}

func newGuest(t testing.TB) *guest {
	t.Helper()
	if raceEnabled {
		t.Skip("compiling a guest of 2 MB under the race detector takes too long, and it runs on one goroutine")
	}
	if _, err := exec.LookPath("go"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("no go command to build the guest with")
		}
		t.Skip("no go command to build the guest with")
	}
	out := filepath.Join(t.TempDir(), "guest.wasm")
	cmd := exec.Command("go", "build", "-trimpath", "-buildmode=c-shared", "-ldflags=-w", "-o", out, ".")
	cmd.Dir = filepath.Join("testdata", "guest")
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, msg)
	}
	code, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if len(code) > mostGuestBytes {
		t.Errorf("the guest has %d bytes, at most %d are expected", len(code), mostGuestBytes)
	}
	code, report, err := meter.Instrument(code, meter.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler())
	t.Cleanup(func() { r.Close(ctx) })
	wasi_snapshot_preview1.MustInstantiate(ctx, r)
	now := int64(0)
	mod, err := r.InstantiateWithConfig(ctx, code, wazero.NewModuleConfig().WithStartFunctions(ExportInit).
		WithNanotime(func() int64 { now += 1000; return now }, 1))
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{mod: mod, slice: report.Slice}
	g.fuel = mod.ExportedGlobal(meter.FuelExport).(api.MutableGlobal)
	g.budget = mod.ExportedGlobal(meter.BudgetExport).(api.MutableGlobal)
	for k := range NumKinds {
		g.fns[k] = mod.ExportedFunction(k.Export())
	}
	region, err := mod.ExportedFunction(ExportArena).Call(ctx, 1<<14)
	if err != nil {
		t.Fatal(err)
	}
	if g.at, g.size = UnpackRegion(region[0]); g.size < 1<<14 || g.at%8 != 0 {
		t.Fatalf("the arena is %d bytes at %#x", g.size, g.at)
	}
	return g
}

// arena returns the arena. It reads it from the instance each time, because the memory may
// have moved.
func (g *guest) arena() []byte {
	b, _ := g.mod.Memory().Read(g.at, g.size)
	return b
}

// call calls the function of a kind with a frame of n bytes.
func (g *guest) call(k Kind, n int) (uint64, error) {
	fuel, budget := meter.Split(1<<30, g.slice)
	g.fuel.Set(fuel)
	g.budget.Set(budget)
	g.stack[0] = uint64(n)
	err := g.fns[k].CallWithStack(context.Background(), g.stack[:])
	return g.stack[0], err
}

// TestGuestDecidesAsNative compares five built-in policies in the guest and on the host.
func TestGuestDecidesAsNative(t *testing.T) {
	g := newGuest(t)
	r := rand.New(rand.NewPCG(1, 2))
	tokens := func(n int) policies.Tokens { return policies.Tokens(r.IntN(n)) }
	run := func(k Kind, n int, err error) uint64 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		result, err := g.call(k, n)
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	for range 500 {
		var bids []policies.Bid
		for range r.IntN(20) {
			bids = append(bids, policies.Bid{From: "replica", Load: tokens(30), Start: policies.Micros(r.IntN(5))})
		}
		n, err := EncodeSelectCall(g.arena(), Call{}, bids)
		if i, err := DecodeSelectResult(run(Select, n, err), len(bids)); err != nil || i != (bidask.LeastLoad{}).Select(bids) {
			t.Fatalf("select: %d, %v", i, err)
		}

		ask := Ask{policies.Occupancy{Capacity: 1e6, Held: tokens(1e6), Incoming: tokens(1e6), Throughput: tokens(1e5)}, policies.Migration{Request: "x", Length: tokens(1e5), Cause: policies.Drain}}
		n, err = EncodeQuoteCall(g.arena(), Call{}, ask)
		// Read the result first, because the call may move the memory.
		result := run(Quote, n, err)
		got, ok, err := DecodeQuoteResult(g.arena(), result)
		if want, bids := (bidask.Backlog{}).Quote(ask.Position, ask.Handover); err != nil || got != want || ok != bids {
			t.Fatalf("quote: %+v, %v, %v; want %+v", got, ok, err, want)
		}

		own, mean := tokens(1e6), tokens(1e6)
		n, err = EncodeOutlierCall(g.arena(), Call{}, own, mean)
		result = run(Outlier, n, err)
		if x, err := DecodeOutlierResult(g.arena(), result, own); err != nil || x != (outlier.Detector{}).Excess(own, mean) {
			t.Fatalf("outlier: %d, %v", x, err)
		}

		a := policies.Arrival{Request: policies.Request{Input: tokens(4000)}, Hops: r.IntN(2),
			Own: policies.Candidate{ID: "own", High: 2000, Waiting: tokens(20_000), Draining: r.IntN(9) == 0}}
		for i := range r.IntN(6) {
			low := policies.Tokens(r.IntN(2) * 2000)
			a.Peers = append(a.Peers, policies.Candidate{ID: policies.ReplicaID(rune('a' + i)), Low: low, High: low + 2000, Waiting: tokens(20_000), Load: tokens(100), Prefix: tokens(3000)})
		}
		n, err = EncodePlaceCall(g.arena(), Call{}, a)
		if id, err := DecodePlaceResult(run(Place, n, err), a); err != nil || id != (place.Policy{}).Place(a) {
			t.Fatalf("place: %q, %v", id, err)
		}

		b := policies.BoundaryView{Boundary: 5000, High: policies.Unbounded, Peers: 1 + r.IntN(4), Successors: 1 + r.IntN(4),
			Cost: policies.Cost{D0: 0.01, D1: 1e-4, D2: 1e-5, D4: 1e-7}}
		for range r.IntN(40) {
			b.Local = append(b.Local, policies.Sequence{Input: tokens(5000), Length: tokens(5000)})
			b.Next = append(b.Next, policies.Sequence{Input: tokens(9000), Length: 5000 + tokens(20_000)})
		}
		n, err = EncodeRefineCall(g.arena(), Call{}, b)
		result = run(Refine, n, err)
		if at, err := DecodeRefineResult(g.arena(), result, b); err != nil || at != (refine.Weighted{}).Refine(b) {
			t.Fatalf("refine: %d, %v; want %d", at, err, (refine.Weighted{}).Refine(b))
		}
	}
}

// BenchmarkGuest measures a decision end to end: encode, arm, call, check.
func BenchmarkGuest(b *testing.B) {
	g := newGuest(b)
	bids := sixteen()
	ask := Ask{policies.Occupancy{Capacity: 100_000, Held: 5000, Throughput: 1_000_000}, policies.Migration{Request: "replica-a/17", Length: 5000, Cause: policies.Growth}}
	b.Run("select16", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			n, _ := EncodeSelectCall(g.arena(), Call{ID: 7}, bids)
			result, err := g.call(Select, n)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := DecodeSelectResult(result, len(bids)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("quote", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			n, _ := EncodeQuoteCall(g.arena(), Call{ID: 7}, ask)
			result, err := g.call(Quote, n)
			if err != nil {
				b.Fatal(err)
			}
			if _, _, err := DecodeQuoteResult(g.arena(), result); err != nil {
				b.Fatal(err)
			}
		}
	})
}
