package fleet

import (
	"math"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// TestDemand checks when a model is overloaded: within 10 s of the first refusals, until 10 s after the last
// one, and by a long queue only where replicas are missing. Its rate has the refused requests.
func TestDemand(t *testing.T) {
	type load struct {
		seconds         int
		served, refused float64 // per second
		waiting         int
		missing         bool
		running         int
	}
	for name, c := range map[string]struct {
		loads      []load
		overloaded int // for how many seconds of the last load, at its end; -1: not
		want       Demand
	}{
		"idle":                  {[]load{{30, 0, 0, 0, false, 0}}, -1, Demand{}},
		"well":                  {[]load{{30, 10, 0, 5, true, 0}}, -1, Demand{Rate: 10, Queue: 500 * time.Millisecond}},
		"most refused":          {[]load{{30, 10, 0, 0, false, 0}, {10, 2, 5, 60, false, 0}}, 9, Demand{Rate: 7, RefusedShare: 5. / 7, Queue: 30 * time.Second, Refused: 50}},
		"all refused":           {[]load{{60, 0, 0, 0, false, 0}, {10, 0, 5, 0, false, 0}}, 9, Demand{Rate: 5, RefusedShare: 1, Refused: 50}},
		"one in a hundred":      {[]load{{30, 99, 1, 0, false, 0}}, -1, Demand{Rate: 100, RefusedShare: 0.01, Refused: 30}},
		"none has ended yet":    {[]load{{30, 0, 0, 0, false, 0}, {5, 0, 5, 20, false, 20}}, 4, Demand{Rate: 8.4, RefusedShare: 25. / 65, Queue: 3875 * time.Millisecond, Refused: 25}},
		"over":                  {[]load{{30, 2, 5, 60, false, 0}, {10, 7, 0, 0, false, 0}}, -1, Demand{Rate: 7, Refused: 150}},
		"queue":                 {[]load{{30, 1, 0, 20, true, 0}}, 29, Demand{Rate: 1, Queue: 20 * time.Second}},
		"queue of long prompts": {[]load{{30, 1, 0, 20, false, 0}}, -1, Demand{Rate: 1, Queue: 20 * time.Second}},
	} {
		var d demandMeter
		now, served, refused, since := time.Unix(100, 0), 0., 0., -1
		for _, l := range c.loads {
			since = -1
			for tick := range 4 * l.seconds {
				now, served, refused = now.Add(250*time.Millisecond), served+l.served/4, refused+l.refused/4
				d.step(now, demandCount{ended: uint64(served), refused: uint64(refused), waiting: l.waiting, held: l.waiting + l.running}, l.missing)
				switch {
				case !d.demand.Overloaded:
					since = -1
				case since < 0:
					since = tick
				}
			}
			if since >= 0 {
				since = l.seconds - (since+3)/4
			}
		}
		got := d.demand
		near := math.Abs(got.Rate-c.want.Rate) < 0.2 && math.Abs(got.RefusedShare-c.want.RefusedShare) < 0.02 && (got.Queue-c.want.Queue).Abs() < c.want.Queue/20+1
		if !near || got.Refused != c.want.Refused || since != c.overloaded {
			t.Errorf("%s: %+v, overloaded for %d s, want %+v, %d s", name, got, since, c.want, c.overloaded)
		}
	}
	var d demandMeter
	for i, c := range []demandCount{{ended: 100, refused: 100}, {ended: 200, refused: 200}, {ended: 50, refused: 20}, {ended: 60, refused: 20}} {
		d.step(time.Unix(int64(i), 0), c, false)
	}
	if d.demand.Rate != 10 || d.demand.Overloaded {
		t.Errorf("after a replica has left with its counters: %+v", d.demand)
	}
}

// TestDemandOfDeadReplica checks that the requests which waited at a replica count no more when it has died, and that
// those which it has when it reports again did not arrive then.
func TestDemandOfDeadReplica(t *testing.T) {
	s := testState(t, PolicyDefault)
	reports := map[policies.ReplicaID]*loadreport.Report{}
	for _, id := range []policies.ReplicaID{"r0", "r1"} {
		reports[id] = &loadreport.Report{Replica: id, Model: "m", EngineReady: true, Load: policies.Load{Waiting: 50, Running: 10}}
	}
	now := start
	wait := func(seconds int) Demand {
		for range 4 * seconds {
			now = now.Add(250 * time.Millisecond)
			for _, r := range reports {
				r.Flow.Seen++
				settleState(s, now, Reported{*r})
			}
			settleState(s, now, Tick{})
		}
		return s.Snapshot(now).Models[0].Demand
	}
	if d := wait(20); math.Abs(d.Rate-8) > 0.1 || math.Abs(d.Queue.Seconds()-12.5) > 0.5 {
		t.Errorf("two replicas: %+v", d)
	}
	r1 := reports["r1"]
	delete(reports, "r1")
	if d := wait(20); math.Abs(d.Rate-4) > 0.1 || math.Abs(d.Queue.Seconds()-12.5) > 0.5 {
		t.Errorf("one of them is dead: %+v", d)
	}
	reports["r1"] = r1
	if d := wait(3); d.Rate > 8.1 {
		t.Errorf("it reports again, and its requests count as new ones: %+v", d)
	}
}
