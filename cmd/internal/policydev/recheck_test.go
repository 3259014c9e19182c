package policydev

import (
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	wasm "github.com/cascadeinfer/cascade/wasm/slothost"
)

func TestRecheck(t *testing.T) {
	frame := make([]byte, 4096)
	n, err := abi.EncodeOutlierCall(frame, abi.Call{}, 1000, 500)
	testkit.NoError(t, err)
	native := wasm.Native{Detector: bidask.Detector{}, Selector: bidask.LeastLoad{}}
	var record host.Record
	testkit.NoError(t, native.Answer(frame[:n], &record))
	module := record
	module.Module[0] = 1
	failed := record
	failed.Cause = host.Trapped
	if r := Recheck(native, []host.Record{record, module, failed, {Kind: abi.Guard}}); r != (RecheckResult{Calls: 2, Modules: 1}) {
		t.Errorf("%+v", r)
	}
	native.Detector = bidask.Detector{Percent: 500}
	if r := Recheck(native, []host.Record{module}); r.Different != 1 || !strings.Contains(r.First, "outlier: offer 500 tokens, natively offer 0 tokens") {
		t.Errorf("%+v", r)
	}
	if r := (RecheckResult{Calls: 1}).Add(RecheckResult{Calls: 2, Different: 1, First: "x"}); r.Calls != 3 || r.First != "x" {
		t.Errorf("%+v", r)
	}
}
