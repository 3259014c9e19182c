package policydev

import (
	"fmt"

	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/host"
	wasm "github.com/cascadeinfer/cascade/wasm/slothost"
)

// RecheckResult is the result of Recheck.
type RecheckResult struct {
	Calls     int    `json:"calls"`
	Modules   int    `json:"by_modules"` // decided by a module
	Different int    `json:"different"`  // decided differently
	First     string `json:"first,omitempty"`
}

// Add returns the sum of two results.
func (r RecheckResult) Add(o RecheckResult) RecheckResult {
	if r.First == "" {
		r.First = o.First
	}
	r.Calls, r.Modules, r.Different = r.Calls+o.Calls, r.Modules+o.Modules, r.Different+o.Different
	return r
}

// Recheck replays recorded calls on native policies and counts the differences. Calls of
// kinds without a native policy, and calls without an answer, are not counted.
func Recheck(n wasm.Native, records []host.Record) RecheckResult {
	n.Guard = nil // the native guard is not expected to equal a module's rules
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
		if err == nil && calllog.SameAnswer(&was, &now) {
			continue
		}
		if out.Different++; out.First == "" {
			out.First = fmt.Sprintf("%s: %s, natively %s", was.Kind, describeDecision(&was), describeDecision(&now))
		}
	}
	return out
}
