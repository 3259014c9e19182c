package policydev

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

// BenchResult is the result of one kind.
type BenchResult struct {
	Kind   string  `json:"kind"`
	Wasm   float64 `json:"wasm_ns"`      // per call: encode the frame, call, check the answer
	Allocs float64 `json:"allocs"`       // allocations of the host per call
	Fuel50 int64   `json:"fuel_p50"`     // ticks
	Fuel99 int64   `json:"fuel_p99"`     // ticks
	Limit  int64   `json:"fuel_limit"`   // ticks
	Native string  `json:"native"`       // the built-in policy to compare with, "" for none
	Beside float64 `json:"native_ns"`    // per call of the built-in policy
	Calls  int     `json:"calls"`        // calls of the module in all rounds
	Rounds int     `json:"rounds"`       // the durations are the medians of the rounds
	Empty  float64 `json:"empty_ns"`     // per call with the smallest arguments
	Memory uint32  `json:"memory_bytes"` // after all calls
}

// benchRounds is the number of rounds, which alternate between the module and the native
// policy, so that other load on the host affects both.
const benchRounds = 5

// Bench measures each kind that a module decides, for about the given time, and a
// built-in policy for comparison: the named one, or for "" the default of the kind.
func Bench(ctx context.Context, s *Subject, name string, each time.Duration) ([]BenchResult, error) {
	var all []BenchResult
	for _, k := range s.kinds() {
		twin, _ := defaultBuiltin(k)
		if name != "" {
			var err error
			if twin, err = findBuiltin(name, s.kinds()); err != nil {
				return nil, err
			}
		}
		m, err := s.bench(ctx, k, twin, each)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

func (s *Subject) bench(ctx context.Context, k abi.Kind, twin builtin, each time.Duration) (m BenchResult, err error) {
	m = BenchResult{Kind: k.String(), Limit: s.Module.Limit(k).Fuel, Rounds: benchRounds}
	i, err := s.instance()
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, i.Close()) }()
	source := newRandom(1, k)
	asked := make([]call, 64)
	var fuel []int64
	for n := range asked {
		asked[n] = source.typical(k)
		if err := asked[n].ask(i, abi.Call{}); err != nil {
			return m, err
		}
		fuel = append(fuel, i.Fuel())
	}
	slices.Sort(fuel)
	m.Fuel50, m.Fuel99 = quantile(fuel, 50), quantile(fuel, 99)

	small := kinds[k].random(source, 0, 0)
	var module, empty, beside, allocs []float64
	part := each / (benchRounds * 5) // three fifths for the module, one for the native policy, one for empty calls
	for range benchRounds {
		if err := ctx.Err(); err != nil {
			return m, err
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		ns, calls := timeCalls(3*part, func(n int) { keepFirst(&err, asked[n%len(asked)].ask(i, abi.Call{ID: uint64(n)})) })
		runtime.ReadMemStats(&after)
		module, allocs, m.Calls = append(module, ns), append(allocs, float64(after.Mallocs-before.Mallocs)/float64(calls)), m.Calls+calls
		ns, _ = timeCalls(part, func(int) { keepFirst(&err, small.ask(i, abi.Call{})) })
		empty = append(empty, ns)
		if err != nil {
			return m, err
		}
		if twin.Decides(k) {
			m.Native = twin.name
			ns, _ = timeCalls(part, func(n int) { asked[n%len(asked)].native(&twin.Native) })
			beside = append(beside, ns)
		}
	}
	m.Wasm, m.Empty, m.Allocs, m.Beside = median(module), median(empty), median(allocs), median(beside)
	m.Memory, _ = i.Memory()
	return m, nil
}

// keepFirst keeps the first error.
func keepFirst(kept *error, err error) {
	if *kept == nil {
		*kept = err
	}
}

// timeCalls calls f for at least that long and returns nanoseconds per call.
func timeCalls(least time.Duration, f func(n int)) (ns float64, calls int) {
	for n := 1; ; n *= 2 {
		begin := time.Now()
		for i := range n {
			f(i)
		}
		if d := time.Since(begin); d >= least || n >= 1<<30 {
			return float64(d.Nanoseconds()) / float64(n), n
		}
	}
}

func median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[len(list)/2]
}
