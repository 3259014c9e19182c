package fleet

import (
	"fmt"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

// scaledState is a State whose replicas all report the same.
type scaledState struct {
	*State
	t      *testing.T
	now    time.Time
	report loadreport.Report
	ids    []string
}

// newScaledState returns a State of replicas that have not reported yet.
func newScaledState(t *testing.T, rules Rules, n int) *scaledState {
	t.Helper()
	rules.Models = []Model{{Model: resources.Model{Name: "m", Context: 32768}, QoE: policytest.H200QoE(), Cost: policies.Cost{D0: 0.008, D1: 5e-5, D2: 6e-5, D3: 1e-9, D4: 6e-8}}}
	s := &scaledState{State: testkit.Must(NewState(rules)), t: t, now: start}
	var list []policies.Replica
	for i := range n {
		s.ids = append(s.ids, fmt.Sprint("r", i))
		list = append(list, scenarioReplica(s.ids[i]))
	}
	settleState(s.State, s.now, Replicas{list})
	s.report = loadreport.Report{Model: "m", EngineReady: true, Load: policies.Load{Running: 20, Iteration: 0.012}}
	s.report.Flow, s.report.Snapshot = mix("skewed")
	s.report.Flow.Seen = 1000
	return s
}

// wait lets time pass, in which the replicas report if they do, and returns what is recommended.
func (s *scaledState) wait(d time.Duration, reports bool) Scaling {
	for end := s.now.Add(d); s.now.Before(end); {
		s.now = s.now.Add(time.Second)
		for _, id := range s.ids {
			if reports {
				s.report.Replica = policies.ReplicaID(id)
				settleState(s.State, s.now, Reported{s.report})
			}
		}
		settleState(s.State, s.now, Tick{})
	}
	return s.Snapshot(s.now).Models[0].Scaling
}

// TestScaling follows the recommendation of a fleet, from its start to a demand that is refused.
func TestScaling(t *testing.T) {
	for _, shared := range []bool{false, true} { // one that never leads recommends, too
		s := newScaledState(t, Rules{Shared: shared, Name: "a", Scaling: planner.ScalerConfig{Utilisation: 0.5, Window: 60 * policies.Second}}, 4)
		if got := s.wait(time.Second, false); got.Desired != 4 || got.Reason != planner.ScaleUnknown || got.Present != 4 || got.Utilisation != 0.5 {
			t.Errorf("at the start: %+v", got)
		}
		got := s.wait(30*time.Second, true)
		need := testkit.Must(planner.Demand(s.models[0].planner.ScaleSample(s.registry.View(s.now, "m")).Workload, 1, 0.5))
		if got.Needed != need.Replicas || got.Desired != max(4, need.Replicas) || len(got.Stages) != len(s.models[0].planner.Plan().Stages) {
			t.Errorf("%+v, want %+v", got, need)
		}
		// 20 requests are refused in each second by each replica, which serves about 4.
		before := got
		for range 60 {
			s.report.Refused += 20
			got = s.wait(time.Second, true)
		}
		if got.Growth < 2 || got.Needed < 2*before.Needed-1 || got.Desired != got.Needed {
			t.Errorf("refused requests: %+v, before %+v", got, before)
		}
		// A restarted migrator counts anew.
		s.report.Refused = 0
		if got = s.wait(5*time.Minute, true); got.Growth > 1.01 || got.Desired > max(before.Desired, before.Needed+2) {
			t.Errorf("no more refusals: %+v", got)
		}
	}
}

// TestScalingSpeed: the window of a fleet that is emulated ten times as fast is a tenth.
func TestScalingSpeed(t *testing.T) {
	s := newScaledState(t, Rules{Speed: 10, Scaling: planner.ScalerConfig{Window: 600 * policies.Second}}, 40)
	if got := s.wait(50*time.Second, true); got.Desired != 40 || got.Reason != planner.ScaleHolding {
		t.Errorf("before a tenth of the window: %+v", got)
	}
	if got := s.wait(20*time.Second, true); got.Desired >= 40 || got.Reason != planner.ScaleNeeded {
		t.Errorf("after a tenth of the window: %+v", got)
	}
	if _, err := NewState(Rules{Models: s.rules.Models, Scaling: planner.ScalerConfig{Utilisation: 2}}); err == nil {
		t.Error("a utilisation of 2 is accepted")
	}
}

// TestResign checks that a control plane which is the leader no longer shows neither what it planned nor for which traffic,
// but the present traffic.
func TestResign(t *testing.T) {
	s := newScaledState(t, Rules{Shared: true, Name: "a", Period: time.Second}, 4)
	settleState(s.State, s.now, Stored{})
	s.wait(5*time.Second, true)
	arrivals := func(m ModelState) (sum float64) {
		for _, x := range m.Workload.Flow.Arrivals {
			sum += x
		}
		return sum
	}
	before := s.Snapshot(s.now)
	if m := before.Models[0]; !before.Leadership.Leading || m.Planner == "" || arrivals(m) == 0 {
		t.Fatalf("leader: %q, %v requests/s", m.Planner, arrivals(m))
	}
	o := s.object
	o.Lease = store.Lease{Holder: "b", Expires: s.now}
	settleState(s.State, s.now, Stored{o})
	s.report.Flow = planner.ScaleFlow(policies.Workload{Flow: s.report.Flow}, 2).Flow
	s.wait(2*time.Second, true)
	after := s.Snapshot(s.now)
	if m := after.Models[0]; after.Leadership.Leading || m.Planner != "" || m.StageReasons != nil || arrivals(m) != 2*arrivals(before.Models[0]) {
		t.Errorf("follower: %q, reasons %v, %v requests/s, %v before", m.Planner, m.StageReasons, arrivals(m), arrivals(before.Models[0]))
	}
}
