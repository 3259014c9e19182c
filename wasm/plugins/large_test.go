package plugins_test

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/guesttest"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// TestLargeFrames makes calls with frames near the kind's limit, again and again:
// neither memory nor fuel runs out. (Ten were enough to run out of memory when
// garbage was collected only as Go does by itself.)
func TestLargeFrames(t *testing.T) {
	const calls, requests = 30, 8000
	b := policies.Border{Boundary: 5000, High: policies.Unbounded, Peers: 2, Successors: 3, Cost: policytest.H20()}
	for i := range policies.Tokens(requests) {
		b.Local = append(b.Local, policies.Sequence{Input: i * 7 % 50, Length: i * 7919 % 5000})
		b.Next = append(b.Next, policies.Sequence{Input: i * 7 % 50, Length: 5000 + i*7919%9000})
	}
	m := guesttest.Load(t, guesttest.Build(t, "refine-weighted"), host.Config{})
	g := guesttest.Start(t, m)
	most := int64(0)
	for i := range calls {
		if _, err := g.Refine(abi.Call{}, b); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		most = max(most, g.Fuel())
	}
	now, first := g.Memory()
	t.Logf("%d requests: at most %d of %d ticks, memory %d of at first %d bytes", 2*requests, most, m.Limit(abi.Refine).Fuel, now, first)
}
