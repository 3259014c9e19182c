package policy

import (
	"fmt"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	wasm "github.com/cascadeinfer/cascade/wasm/policy"
)

// Repeated is what came of deciding recorded calls once more.
type Repeated struct {
	Calls     int    `json:"calls"`
	Modules   int    `json:"by_modules"` // of them were decided by a module
	Different int    `json:"different"`  // were decided otherwise
	First     string `json:"first,omitempty"`
}

// Plus is the sum of two.
func (r Repeated) Plus(o Repeated) Repeated {
	if r.First == "" {
		r.First = o.First
	}
	r.Calls, r.Modules, r.Different = r.Calls+o.Calls, r.Modules+o.Modules, r.Different+o.Different
	return r
}

// Again has native policies decide recorded calls once more. Calls of kinds that
// there is no native policy for, and calls that nobody answered, do not count.
func Again(n wasm.Native, records []host.Record) Repeated {
	var out Repeated
	for _, was := range records {
		p := nativeOf(n, was.Kind)
		if p == nil || was.Cause != 0 {
			continue
		}
		out.Calls++
		if was.Module != ([32]byte{}) {
			out.Modules++
		}
		var now host.Record
		err := native{builtin{"native", []abi.Kind{was.Kind}, p}}.Replay(was.Frame, &now)
		if err == nil && same(&was, &now) {
			continue
		}
		if out.Different++; out.First == "" {
			out.First = fmt.Sprintf("%s: %s, natively %s", was.Kind, decision(&was), decision(&now))
		}
	}
	return out
}

// nativeOf is the native policy of a kind, nil for none.
func nativeOf(n wasm.Native, k abi.Kind) any {
	of := map[abi.Kind]any{
		abi.Partition: n.Partitioner, abi.Refine: n.Refiner, abi.Quote: n.Quoter, abi.Select: n.Selector,
		abi.Outlier: n.Detector, abi.Place: n.Placer,
	}
	return of[k] // an interface without a value is nil
}
