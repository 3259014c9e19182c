package control

import (
	"slices"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
)

// observeInterval is the age up to which an observation is shared.
const observeInterval = time.Second

// observation is what the control plane sees at one moment. Nothing in it is ever changed.
type observation struct {
	status    Status
	published publish.Status // with what the nodes report of themselves
	slots     []PolicySlot
}

// observer makes an observation a second at most, for all who ask: to describe ten thousand nodes costs milliseconds
// under the lock that their acknowledgements need.
type observer struct {
	mu   sync.Mutex
	last *observation // nil: none yet, or an order was given since
}

// observe returns an observation that is at most a second old, and not older than the last order and the last plan.
func (c *Control) observe() *observation {
	o := &c.observer
	o.mu.Lock()
	defer o.mu.Unlock()
	now, snapshot := time.Now(), c.fleet.Snapshot()
	planned := o.last != nil && snapshot != nil && snapshot.Epoch != o.last.status.Epoch
	if o.last == nil || planned || now.Sub(o.last.status.Time) >= observeInterval {
		o.last = c.look(now, snapshot)
	}
	return o.last
}

// expire makes the next observation a new one.
func (o *observer) expire() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = nil
}

// look makes an observation.
func (c *Control) look(now time.Time, snapshot *fleet.Snapshot) *observation {
	published := c.publisher.Status()
	problems := c.loads.book.Problems(now)
	for i, n := range published.Nodes {
		published.Nodes[i].Problems = problems[n.ID]
	}
	s := statusOf(snapshot, published, c.cfg.Policy, now)
	c.planes.addPlanes(&s, now)
	reports := c.slots.reports(now)
	slots := policySlots(c.slots.stored(), reports, published.Nodes, now)
	s.Policies, s.Plaintext = policySummaries(slots, reports, now), c.cfg.Plaintext
	s.Faults = c.faults(snapshot, published, s.Policies, now)
	s.Verdict = VerdictOf(s.Faults, s.Epoch)
	return &observation{s, published, slots}
}

// Verdict says whether a fleet is well, as its faults say.
type Verdict string

// The verdicts, the worst first.
const (
	NotReady Verdict = "not_ready" // requests or operators' orders fail
	Starting Verdict = "starting"  // there is no plan yet
	Faulty   Verdict = "faults"
	Well     Verdict = "ok"
)

// VerdictOf returns the verdict on a fleet whose newest plan has an epoch; 0: there is none.
func VerdictOf(faults []Fault, epoch policies.Epoch) Verdict {
	switch {
	case slices.ContainsFunc(faults, func(f Fault) bool { return f.NotReady }):
		return NotReady
	case epoch == 0:
		return Starting
	case len(faults) > 0:
		return Faulty
	}
	return Well
}

// Status returns what GET /status answers: at most a second old, and not older than the last order and the
// last plan. It must not be changed.
func (c *Control) Status() Status { return c.observe().status }
