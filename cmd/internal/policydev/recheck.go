package policydev

import (
	"fmt"

	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/host"
	wasm "github.com/cascadeinfer/cascade/wasm/policy"
)

// RecheckResult is what came of deciding recorded calls once more.
type RecheckResult struct {
	Calls     int    `json:"calls"`
	Modules   int    `json:"by_modules"` // of them were decided by a module
	Different int    `json:"different"`  // were decided otherwise
	First     string `json:"first,omitempty"`
}

// Add is the sum of two.
func (r RecheckResult) Add(o RecheckResult) RecheckResult {
	if r.First == "" {
		r.First = o.First
	}
	r.Calls, r.Modules, r.Different = r.Calls+o.Calls, r.Modules+o.Modules, r.Different+o.Different
	return r
}

// Recheck has native policies decide recorded calls once more. Calls of kinds that
// there is no native policy for, and calls that nobody answered, do not count.
func Recheck(n wasm.Native, records []host.Record) RecheckResult {
	n.Guard = nil // nobody expects rules to be those of a module
	var out RecheckResult
	for _, was := range records {
		if was.Cause != 0 {
			continue
		}
		var now host.Record
		err := n.Answer(was.Frame, &now)
		if now.Cause == host.Unknown {
			continue
		}
		out.Calls++
		if was.Module != ([32]byte{}) {
			out.Modules++
		}
		if err == nil && calllog.Same(&was, &now) {
			continue
		}
		if out.Different++; out.First == "" {
			out.First = fmt.Sprintf("%s: %s, natively %s", was.Kind, describeDecision(&was), describeDecision(&now))
		}
	}
	return out
}
