package meter

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// A subject is a call whose duration is measured in the original and the metered module.
type subject struct {
	name  string
	code  []byte
	call  string
	args  []uint64
	frame bool  // the call selects one of sixteen bids in the module's arena
	fuel  int64 // fuel of each call; the limit of a bid is 50,000
	batch int
}

// subjects returns the hand-written modules, the Go guest of this package, and two policies as
// authors write them, in C and Go. C needs Zig: make zig.
func subjects(b *testing.B) []subject {
	guest := goGuest(b)
	list := []subject{
		{"hand/empty", behind(handEmpty()).encode(), "run", []uint64{0}, false, 50_000, 1000},
		{"hand/select16", behind(handSelect()).encode(), "run", []uint64{16}, false, 50_000, 500},
		{"hand/divide", behind(handDivide()).encode(), "run", []uint64{32}, false, 1 << 40, 2},
	}
	zig := filepath.Join("..", "..", ".cache", "zig", "bin", "python")
	if _, err := os.Stat(zig); err == nil {
		out := filepath.Join(b.TempDir(), "near.wasm")
		cmd := exec.Command(zig, "-m", "ziglang", "cc", "-target", "wasm32-freestanding", "-std=c11", "-O2", "-nostdlib", "-I", filepath.Join("..", "guest", "c"),
			"-Wl,--no-entry", "-Wl,--strip-debug", "-o", out, filepath.Join("..", "..", "examples", "bid-c", "src", "near.c"))
		if msg, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v\n%s", err, msg)
		}
		code := testkit.Must(os.ReadFile(out))
		list = append(list, subject{"c/near16", code, abi.Select.Export(), nil, true, 50_000, 500})
	}
	return append(list,
		subject{"go/least16", hosttest.Build(b, "../plugins/bid-least-load.go"), abi.Select.Export(), nil, true, 50_000, 250},
		subject{"go/empty", guest, "arena", nil, false, 50_000, 1000},
		subject{"go/select16", guest, "choose", []uint64{16}, false, 50_000, 250},
		subject{"go/divide", guest, "divide", []uint64{32, 64}, false, 1 << 40, 1},
		subject{"go/churn", guest, "churn", []uint64{1000}, false, 1 << 40, 1})
}

// policyEngine returns an engine with all imports of policies.
func policyEngine(b *testing.B) engine {
	ctx := context.Background()
	e := engine{wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler().WithCoreFeatures(api.CoreFeaturesV2))}
	b.Cleanup(func() { e.r.Close(ctx) })
	says := func(context.Context, []uint64) {}
	three := []api.ValueType{api.ValueTypeI32, api.ValueTypeI32, api.ValueTypeI32}
	if _, err := e.r.NewHostModuleBuilder(abi.ImportModule).
		NewFunctionBuilder().WithGoFunction(api.GoFunc(says), three, nil).Export(abi.ImportLog).
		NewFunctionBuilder().WithGoFunction(api.GoFunc(says), three, nil).Export(abi.ImportFail).Instantiate(ctx); err != nil {
		b.Fatal(err)
	}
	wasi_snapshot_preview1.MustInstantiate(ctx, e.r)
	return e
}

// A placed is one copy of a subject at some address, with the durations of its batches.
type placed struct {
	armed
	f     api.Function
	args  []uint64
	times []float64
}

// place compiles code with n instructions before it and prepares the call.
func (s subject) place(b *testing.B, e engine, code []byte, n int) *placed {
	ctx := context.Background()
	p := &placed{armed: armed{Module: goInstance(b, e, compile(b, e, shifted(code, n)))}, args: s.args}
	b.Cleanup(func() { p.Close(ctx) })
	if p.f = p.ExportedFunction(s.call); p.f == nil {
		b.Fatalf("%s: no export %s", s.name, s.call)
	}
	if !s.frame {
		return p
	}
	region, err := p.ExportedFunction(abi.ExportArena).Call(ctx, 8<<10)
	if err != nil {
		b.Fatal(err)
	}
	bids := make([]policies.Bid, 16)
	for i := range bids {
		bids[i] = policies.Bid{From: "replica-x", Load: policies.Tokens(i * 7919 % 31), Start: policies.Micros(i * 31 % 7)}
	}
	arena, _ := p.Memory().Read(abi.UnpackRegion(region[0]))
	length := testkit.Must(abi.EncodeSelectCall(arena, abi.Call{ID: 7}, bids))
	p.args = []uint64{uint64(length)}
	return p
}

// run measures a batch, after one that warms the processor's caches and predictors. It arms a
// metered copy for each call as package host does: it does not write what does not change.
func (p *placed) run(b *testing.B, s subject) {
	ctx := context.Background()
	var stack [2]uint64
	fuel, budget := Split(s.fuel, p.slice)
	var start time.Time
	for i := range 2 * s.batch {
		if i == s.batch {
			start = time.Now()
		}
		copy(stack[:], p.args)
		if p.fuel != nil {
			p.fuel.Set(fuel)
			if budget != 0 {
				p.budget.Set(budget)
			}
		}
		testkit.NoError(b, p.f.CallWithStack(ctx, stack[:]))
	}
	p.times = append(p.times, float64(time.Since(start).Nanoseconds())/float64(s.batch))
}

// typical returns the 5th percentile of each copy's batches, sorted over the copies.
func typical(copies []*placed) (list []float64) {
	for _, p := range copies {
		slices.Sort(p.times)
		list = append(list, p.times[len(p.times)/20])
	}
	slices.Sort(list)
	return list
}

func mean(list []float64) (sum float64) {
	for _, v := range list {
		sum += v / float64(len(list))
	}
	return sum
}

// BenchmarkOverhead runs a call in the original and the metered module, in random order, so that
// noise affects both. The speed of such short code depends on its address, by up to a third,
// with and without a meter: so each is compiled to eight addresses, and the ratio is that of
// the means over all.
func BenchmarkOverhead(b *testing.B) {
	const places = 8
	for _, s := range subjects(b) {
		b.Run(s.name, func(b *testing.B) {
			e := policyEngine(b)
			out, report, err := Instrument(s.code, Config{})
			if err != nil {
				b.Fatal(err)
			}
			var plain, metered []*placed
			order := rand.New(rand.NewPCG(1, 2))
			for n := range places {
				plain = append(plain, s.place(b, e, s.code, n))
				m := s.place(b, e, out, n)
				m.armed = arm(b, m.Module, report.Slice)
				metered = append(metered, m)
			}
			for b.Loop() {
				for _, n := range order.Perm(2 * places) {
					[]*placed{plain[n/2], metered[n/2]}[n%2].run(b, s)
				}
			}
			was, is := typical(plain), typical(metered)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(mean(was), "plain-ns/call")
			b.ReportMetric(mean(is), "metered-ns/call")
			b.ReportMetric(mean(is)/mean(was), "ratio")
			b.ReportMetric(float64(s.fuel-metered[0].left()), "ticks/call")
		})
	}
}

// shifted returns a module whose code starts n instructions later. They are added to its first
// function, which must not be a measured one.
func shifted(code []byte, n int) []byte {
	r := reader{b: code, at: len(preamble), end: len(code)}
	for r.left() > 0 {
		start := r.at
		id := r.byte()
		s := r.part(r.u32())
		if id != secCode {
			continue
		}
		bodies := s.u32()
		body := s.part(s.u32())
		first := body.at
		for range body.u32() {
			body.u32()
			body.byte()
		}
		b := append([]byte(nil), code[first:body.at]...)
		for range n {
			b = append(b, opI32Const, 0, opIf, blockEmpty, opUnreachable, opEnd)
		}
		b = append(b, code[body.at:body.end]...)
		content := append(appendU32(appendU32(nil, bodies), uint32(len(b))), b...)
		content = append(content, code[body.end:s.end]...)
		out := append(appendU32(append(append([]byte(nil), code[:start]...), secCode), uint32(len(content))), content...)
		return append(out, code[s.end:]...)
	}
	panic("internal error: no code")
}

// behind puts a function before all others.
func behind(m *module) *module {
	m.types = append(m.types, signature{})
	m.functions = append([]*function{{typ: uint32(len(m.types)) - 1}}, m.functions...)
	m.exports["run"]++
	return m
}
