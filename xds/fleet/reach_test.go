package fleet

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestSilentReplica checks that a replica is unhealthy soon enough after its last report that a status, of which one is
// made at every tick, names it within 5 s.
func TestSilentReplica(t *testing.T) {
	s := testState(t, PolicyDefault)
	s.Step(start, Stored{})
	s.Step(start, Replicas{[]policies.Replica{testReplica("r0")}})
	s.Step(start, Reported{loadreport.Report{Replica: "r0", Model: "m", EngineReady: true}})
	after := time.Duration(0)
	for s.registry.Get("r0").Reason != fleetstate.ReasonLate {
		after += maxTick
		s.Step(start.Add(after), Tick{})
	}
	if after < 4*time.Second || after > 5*time.Second-maxTick {
		t.Errorf("unhealthy %v after the last report, want 4 s at least and %v at most", after, 5*time.Second-maxTick)
	}
}

// TestUnreachableReplica checks that a replica whose migrator reports that it is well is unhealthy
// while all requests of proxies to its address fail and its front end counts none, that it is tried
// again later, and that a front end which refuses requests is not unreachable.
func TestUnreachableReplica(t *testing.T) {
	s := testState(t, PolicyDefault)
	now := start
	s.Step(now, Stored{})
	list := []policies.Replica{testReplica("r0"), testReplica("r1")}
	if e := s.Step(now, Replicas{list}); e.Propose != nil {
		s.Step(now, Stored{e.Propose.Object})
	}
	seen, received := uint64(100), uint64(0)
	second := func(p balance.ProxyReport) {
		now = now.Add(time.Second)
		for _, r := range list {
			report := loadreport.Report{Replica: r.ID, Model: "m", EngineReady: true}
			seen++ // other front ends send requests to its engine
			report.Flow.Seen, report.Service.Received = seen, received
			s.Step(now, Reported{report})
		}
		s.Step(now, ProxiesReported{map[netip.AddrPort]balance.ProxyReport{
			netip.MustParseAddrPort(list[0].Address): {Succeeded: 5},
			netip.MustParseAddrPort(list[1].Address): p,
		}})
	}
	health := func() (resources.Health, fleetstate.Reason) {
		r := s.registry.Get("r1")
		return r.Health, r.Reason
	}
	require := func(what string, want resources.Health) {
		t.Helper()
		if h, reason := health(); h != want || (want == resources.Unhealthy) != (reason == fleetstate.ReasonUnreachable) {
			t.Fatalf("%s: %v, %v", what, h, reason)
		}
	}
	second(balance.ProxyReport{})
	for range 5 {
		received++
		second(balance.ProxyReport{Failed: 9})
	}
	require("a front end that counts the requests", resources.Healthy)
	for range 2 {
		second(balance.ProxyReport{Failed: 9})
	}
	require("two seconds of failures", resources.Healthy)
	for range 2 {
		second(balance.ProxyReport{})
	}
	require("two seconds of failures, then no requests", resources.Unhealthy)
	for range 20 {
		second(balance.ProxyReport{})
	}
	require("no requests, no evidence", resources.Unhealthy)
	for range 11 {
		second(balance.ProxyReport{})
	}
	require("tried again", resources.Healthy)
	second(balance.ProxyReport{Failed: 9})
	require("the address fails still", resources.Unhealthy)
	second(balance.ProxyReport{Succeeded: 1})
	require("a request succeeded", resources.Healthy)
	second(balance.ProxyReport{Failed: 9})
	for range 9 {
		second(balance.ProxyReport{})
	}
	require("requests failed in one report alone", resources.Healthy)
	second(balance.ProxyReport{Succeeded: 1})
	for range 4 {
		now = now.Add(time.Second)
		s.Step(now, StreamClosed{"r1"})
		s.Step(now, ProxiesReported{map[netip.AddrPort]balance.ProxyReport{netip.MustParseAddrPort(list[1].Address): {Failed: 9}}})
	}
	second(balance.ProxyReport{})
	require("its migrator has restarted", resources.Healthy)
}
