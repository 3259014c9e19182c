package wiring

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/xds/fleet"
)

// scaledFleet is a fleet whose number of replicas follows the recommendation of its control plane, by HPA's
// rules.
type scaledFleet struct {
	*virtualFleet
	f       *Fleet
	started map[policies.ReplicaID]time.Time
	next    int   // number of the next replica
	changes []int // of the number of replicas
	most    int
	desired []int // each recommendation that differs from the one before
	waiting map[time.Duration]int
}

const (
	hpaSync     = 15 * time.Second
	replicaNeed = 3 * time.Minute // until a replica has started
)

// newScaledFleet returns a running fleet of so many replicas.
func newScaledFleet(t *testing.T, replicas int, seed uint64) *scaledFleet {
	var text strings.Builder
	text.WriteString("control: {any_removal: true}\nmodels: [{name: m, context: 131072, profile: h200-llama-3.1-8b}]\nreplicas:\n")
	for i := range replicas {
		fmt.Fprintf(&text, "- {id: r%d, address: \"127.0.0.1:%d\", peer: \"127.0.0.1:%d\", engine: \"http://127.0.0.1:%d\"}\n", i, 9000+i, 9500+i, 8000+i)
	}
	c, err := config.Read(strings.NewReader(text.String()))
	testkit.NoError(t, err)
	f, err := Resolve(c, t.TempDir())
	testkit.NoError(t, err)
	s := &scaledFleet{virtualFleet: newVirtualFleet(t, &f, seed), f: &f, started: map[policies.ReplicaID]time.Time{}, next: replicas, waiting: map[time.Duration]int{}}
	s.countAtEnd = true
	return s
}

// list returns the configured replicas.
func (s *scaledFleet) list() []policies.Replica {
	template := s.f.Registry()[0]
	var out []policies.Replica
	for i, e := range s.engines {
		r := template
		r.ID, r.Address, r.Peer = e.id, fmt.Sprintf("127.0.0.1:%d", 20000+i), fmt.Sprintf("127.0.0.1:%d", 30000+i)
		out = append(out, r)
	}
	return out
}

// resize starts or stops replicas, the youngest first; their requests go on elsewhere.
func (s *scaledFleet) resize(n int) {
	s.changes = append(s.changes, n-len(s.engines))
	for len(s.engines) < n {
		e := &virtualEngine{id: policies.ReplicaID(fmt.Sprint("r", s.next)), capacity: s.engines[0].capacity, starting: true, counter: partition.NewFlowCounter(s.edges, s.f.Planner.Window.Seconds())}
		s.started[e.id] = s.now
		s.engines = append(s.engines, e)
		s.next++
	}
	gone := s.engines[n:]
	s.engines = slices.Clone(s.engines[:n])
	s.step(fleet.Replicas{List: s.list()})
	for _, e := range gone {
		for _, q := range e.requests {
			s.place(q)
		}
	}
	s.most = max(s.most, n)
}

// follow lets time pass at a load, and follows the recommendation each time that HPA would.
func (s *scaledFleet) follow(lengths []trace.Request, rate float64, d time.Duration) {
	for end := s.now.Add(d); s.now.Before(end); {
		s.run(lengths, rate, hpaSync)
		waiting := 0
		for _, e := range s.engines {
			e.starting = s.now.Sub(s.started[e.id]) < replicaNeed
			for _, q := range e.requests {
				if q.prefill > 0 {
					waiting++
				}
			}
		}
		s.waiting[s.now.Sub(time.Unix(0, 0))] = waiting
		wanted := s.state.Snapshot(s.now).Models[0].Scaling.Desired
		if n := len(s.desired); n == 0 || s.desired[n-1] != wanted {
			s.desired = append(s.desired, wanted)
		}
		current := len(s.engines)
		if ratio := float64(wanted) / float64(current); math.Abs(ratio-1) > 0.1 {
			s.resize(min(wanted, max(2*current, current+4)))
		}
	}
}

// turns counts the changes of direction.
func (s *scaledFleet) turns() (n int) {
	for i := 1; i < len(s.changes); i++ {
		if (s.changes[i] > 0) != (s.changes[i-1] > 0) {
			n++
		}
	}
	return n
}

// TestAutoscalerFollowsControlPlane drives the control plane's state machine and engines, request by request,
// through a load that quadruples for 25 minutes: the number of replicas goes up, stays, and comes back, while
// plans are made anew and requests queue up until the replicas have started.
func TestAutoscalerFollowsControlPlane(t *testing.T) {
	testkit.SkipSlow(t)
	testkit.SkipUnderRace(t)
	lengths := mix(t, "mixed")
	s := newScaledFleet(t, 4, 1)
	rate := rateFor(s.virtualFleet, lengths, 0.6)
	s.follow(lengths, rate, 15*time.Minute)
	before := len(s.engines)
	s.changes = nil
	s.follow(lengths, 4*rate, 25*time.Minute)
	peak := len(s.engines)
	const begins, ends = 15 * time.Minute, 40 * time.Minute
	for at := begins + hpaSync; at <= ends; at += hpaSync {
		// What has come until the replicas are there is worked off within as long again.
		if late := at - begins; late > 2*(replicaNeed+2*time.Minute) && s.waiting[at] > 20*peak {
			t.Errorf("%v after the load has quadrupled %d requests wait", late, s.waiting[at])
		}
	}
	s.follow(lengths, rate, 25*time.Minute)
	s.logChanges()
	t.Logf("%d replicas, %d with four times the load (at most %d), %d at the end; recommended %v; changes %v", before, peak, s.most, len(s.engines), s.desired, s.changes)
	if s.turns() > 1 {
		t.Errorf("the number of replicas turns %d times: %v", s.turns(), s.changes)
	}
	if peak < 3*before || s.most > peak+peak/4 {
		t.Errorf("%d replicas for four times the load of %d, and %d for a while", peak, before, s.most)
	}
	if n := len(s.engines); n < before-1 || n > before+1 {
		t.Errorf("%d replicas at the end, %d before", n, before)
	}
}
