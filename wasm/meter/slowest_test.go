package meter

import (
	"context"
	"testing"
	"time"
)

// slowest returns endless modules whose ticks take as long as possible: a tick is a number of
// instructions, and these wait for the memory, the divider or the kernel.
func slowest() map[string]*module {
	const address, x, n = 0, 1, 2
	repeat := func(times int, body ...*ins) (list []*ins) {
		for range times {
			list = append(list, body...)
		}
		return list
	}
	forever := func(body ...*ins) *module {
		m := single(nil, nil, []byte{typeI32, typeF64, typeI64}, f64(3), op(0x21, x), op(0x42, 12345678901), op(0x21, n), loop(append(body, op(0x0c, 0))...))
		m.pages, m.maxPages = 128, 128
		m.table, m.tableMax = []int64{0, -1, -1}, 60_000
		return m
	}
	// Each instruction depends on the one before.
	chain := func(l uint64, links ...*ins) *module {
		return forever(append(append([]*ins{op(0x20, l)}, links...), op(0x21, l))...)
	}
	return map[string]*module{
		"nothing":       forever(),
		"loads":         chain(address, repeat(250, op(0x28, 2, 0))...),
		"roots":         chain(x, repeat(250, op(0x9f))...),
		"divisions":     chain(n, repeat(62, op(0x42, 3), op(0x7f), op(0x42, 3), op(0x81))...),
		"rounding":      chain(x, repeat(250, op(0x9b))...),
		"branches":      forever(repeat(62, &ins{op: 0x02, body: []*ins{op(0x20, address), op(0x0e, make([]uint64, 1000)...)}})...),
		"references":    forever(repeat(120, op(0xd2, 0), op(0x1a))...),
		"short fills":   forever(repeat(60, i32(0), i32(1), i32(FillBytes-1), fc(11, 0))...),
		"short copies":  forever(repeat(60, i32(0), i32(1<<20), i32(FillBytes-1), fc(10, 0, 0))...),
		"long copies":   forever(i32(0), i32(1), i32(8<<20-1), fc(10, 0, 0)),
		"table entries": forever(repeat(60, i32(0), op(0xd0), i32(3), fc(17, 0))...),
		"growing":       forever(repeat(60, i32(0), op(0x40, 0), op(0x1a))...),
		"table growing": forever(repeat(60, op(0xd0), i32(0), fc(15, 0), op(0x1a))...),
	}
}

// scatter writes a path through all lines of the memory into it, which no prefetcher can
// predict.
func scatter(a armed) {
	lines := make([]uint32, a.Memory().Size()/64)
	for i := range lines {
		lines[i] = uint32(i) * 64
	}
	x := uint32(1)
	for i := len(lines) - 1; i > 0; i-- {
		x = x*1_664_525 + 1_013_904_223
		j := int(uint64(x) * uint64(i) >> 32)
		lines[i], lines[j] = lines[j], lines[i]
	}
	for i, at := range lines {
		a.Memory().WriteUint32Le(at, lines[(i+1)%len(lines)])
	}
}

// TestSlowestAreCut checks that all of them end when their fuel is used up, and at the first
// checkpoint after they are killed.
func TestSlowestAreCut(t *testing.T) {
	e := newEngine(t)
	for name, m := range slowest() {
		a := e.metered(t, m.encode(), Config{})
		run := a.ExportedFunction("run")
		a.give(3 * DefaultSlice)
		if _, err := run.Call(context.Background()); trapOf(err) != unreachable || a.left() >= 0 {
			t.Errorf("%s: %v, %d ticks left", name, err, a.left())
		}
		a.stack.Set(DefaultStack) // a trap does not release stack
		a.give(MaxFuel)
		a.kill.Set(1)
		// The fuel can run out within the many ticks of one long copy.
		if _, err := run.Call(context.Background()); trapOf(err) != unreachable || MaxFuel-a.left() > DefaultSlice+8<<20/FillBytes+2 {
			t.Errorf("%s, killed: %v, after %d ticks", name, err, MaxFuel-a.left())
		}
	}
}

// BenchmarkSlowest measures how long the slowest code runs between two returns to Go,
// during which it can neither be stopped nor its garbage be collected. References and
// growing tables or memories return in between as well.
func BenchmarkSlowest(b *testing.B) {
	for name, m := range slowest() {
		b.Run(name, func(b *testing.B) {
			a := newEngine(b).metered(b, m.encode(), Config{})
			if name == "loads" {
				scatter(a)
			}
			run := a.ExportedFunction("run")
			const slices = 10
			var took time.Duration
			for b.Loop() {
				a.stack.Set(DefaultStack) // the last trap did not release stack
				a.give(slices*DefaultSlice - 1)
				start := time.Now()
				if _, err := run.Call(context.Background()); trapOf(err) != unreachable {
					b.Fatal(err)
				}
				took += time.Since(start)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N)/slices/DefaultSlice, "ns/tick")
			b.ReportMetric(float64(took.Microseconds())/1000/float64(b.N)/slices, "ms/slice")
		})
	}
}
