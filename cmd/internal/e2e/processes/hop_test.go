package processes

import (
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/move"
	"github.com/cascadeinfer/cascade/xds/control"
)

// hopping is how many streams migrate at once.
const hopping = 3

// hop is a fleet of three. The first replica is the front end of every stream and runs none; the
// two others alternate as source and target. Their messages to each other cross links.
type hop struct {
	*fleet
	links          map[string]*link // by the replica behind the link
	front          *replica
	source, target *replica
	turn           int            // makes each prompt different
	hits           map[string]int // number of faults injected, by step
}

// liveOnGPU is the mode of fleets whose requests migrate live between GPU memories, of a fake
// driver without GPUs.
const liveOnGPU = "live, on a GPU"

// newHop runs a fleet whose requests migrate in the given mode.
func newHop(t *testing.T, mode string, s setup) *hop {
	t.Helper()
	h := &hop{links: map[string]*link{}, hits: map[string]int{}}
	if mode == liveOnGPU {
		mode, s.library = config.MigrationLive, fake.CUDA(t)
	}
	edit := s.edit
	s.replicas = 3
	s.edit = func(c *config.Fleet) {
		if c.Migration.Mode = mode; edit != nil {
			edit(c)
		}
	}
	s.published = func(r *config.Replica) {
		l := newLink(t, r.Peer)
		h.links[r.ID], r.Peer = l, l.address
	}
	h.fleet = newFleet(t, s)
	h.front, h.source, h.target = h.replicas[0], h.replicas[1], h.replicas[2]
	h.Order("drain", h.front.ID)
	h.Order("drain", h.target.ID)
	t.Cleanup(func() { t.Logf("struck: %v", h.hits) })
	return h
}

// begin starts streams of the front end's clients and waits until the source runs all of them.
func (h *hop) begin(output int) (running []*harness.Stream) {
	h.T.Helper()
	for _, r := range h.replicas {
		h.awaitURL("http://"+r.Admin+"/readyz", "ready")
	}
	h.AwaitStatus("only "+h.source.ID+" serves", func(s control.Status) bool {
		for _, r := range h.replicas {
			n := harness.Find(s, r.ID)
			if !n.Connected || n.Health == "unhealthy" || n.Residents != 0 || (len(n.Drain) == 0) != (r == h.source) {
				return false
			}
		}
		return true
	})
	for i := range hopping {
		h.turn++
		running = append(running, h.Start("http://"+h.front.Address, harness.Prompt(h.turn, 350+500*i, output)))
	}
	h.AwaitStatus("all streams run at "+h.source.ID, func(st control.Status) bool {
		n := harness.Find(st, h.source.ID)
		return n.Residents == hopping && n.Waiting == 0
	})
	return running
}

// leaveSource makes the streams migrate from the source to the target.
func (h *hop) leaveSource() {
	h.T.Helper()
	h.Order("undrain", h.target.ID)
	h.Order("drain", h.source.ID)
}

// swap makes the source the target of the next migrations.
func (h *hop) swap() { h.source, h.target = h.target, h.source }

// step is a point of a migration, identified by a message in transit.
type step struct {
	name  string
	kind  move.Kind
	to    func(h *hop) *replica
	round uint32 // minimum round
}

func toSource(h *hop) *replica { return h.source }
func toTarget(h *hop) *replica { return h.target }
func toFront(h *hop) *replica  { return h.front }

// liveSteps are the steps of a live migration, in order.
var liveSteps = []step{
	{"open", move.Open, toSource, 0},
	{"accept", move.Accept, toTarget, 0},
	{"round", move.Round, toTarget, 1},
	{"pulled", move.Pulled, toSource, 1},
	{"manifest", move.Manifest, toTarget, 0},
	{"ready", move.Ready, toSource, 0},
	{"commit", move.Commit, toFront, 0},
	{"committed to source", move.Committed, toSource, 0},
	{"committed to target", move.Committed, toTarget, 0},
}

// repromptSteps are the steps of a migration by re-prompting.
var repromptSteps = []step{
	{"open", move.Open, toSource, 0},
	{"accept", move.Accept, toTarget, 0},
	{"ready", move.Ready, toSource, 0},
	{"commit", move.Commit, toFront, 0},
	{"committed to source", move.Committed, toSource, 0},
	{"committed to target", move.Committed, toTarget, 0},
}

// fault is a fault that is injected into a fleet at a step.
type fault struct {
	name string
	// strike injects the fault while the message is in transit. nil injects none.
	strike func(h *hop)
	// heal undoes the fault later; nil: there is nothing to undo.
	heal func(h *hop)
	// lasts is the time from strike to heal.
	lasts time.Duration
}

// attempts is how often streams may leave the source without a step: not every migration has all steps.
const attempts = 3

// injectFault injects a fault at the first message of a step of some migration.
func (h *hop) injectFault(s step, f fault) {
	h.T.Helper()
	name := f.name + " at " + s.name
	for range attempts {
		if h.migrate(name, s, f) {
			h.hits[s.name]++
			return
		}
		h.T.Logf("%s: the streams migrated without it", name)
	}
	h.T.Errorf("%s: the step never came", name)
}

// migrate migrates streams from the source to the target, with a fault at the first message of a step, if it occurs.
// The streams continue, every text is right, and when the clients have disconnected nothing is left behind. Then source
// and target swap roles.
func (h *hop) migrate(name string, s step, f fault) (came bool) {
	h.T.Helper()
	running := h.begin(forever)
	var mu sync.Mutex
	missed := false
	l := h.links[s.to(h).ID]
	l.onMessage(func(c *api.Transfer) {
		if move.Kind(c.Kind) != s.kind || c.Round < s.round {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if missed || came {
			return
		}
		if came = true; f.strike != nil {
			f.strike(h)
		}
	})
	h.leaveSource()
	left := func(s control.Status) bool {
		n := harness.Find(s, h.source.ID)
		return n.ID != "" && n.Residents == 0
	}
	h.AwaitStatus(name, func(s control.Status) bool {
		mu.Lock()
		defer mu.Unlock()
		return came || left(s)
	})
	mu.Lock() // strike may still be running
	missed = !came
	mu.Unlock()
	if came && f.heal != nil {
		time.Sleep(f.lasts)
		f.heal(h)
	}
	l.onMessage(nil)
	h.AwaitStatus(name+": the streams leave the source", left)
	h.WaitForGrowth(running)
	h.RequireTexts(running)
	// Engines keep unreleased blocks forever, so a wait of any length detects them, on a host of
	// any speed.
	h.awaitEmpty(h.replicas...)
	h.swap()
	return came
}
