package processes

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/transfer"
	"github.com/cascadeinfer/cascade/xds/control"
)

// hopping is how many streams are to move at once.
const hopping = 3

// hop is a fleet of three. The first replica is the front of every stream and
// runs none; the two others are source and target by turns. What they say to
// each other crosses links.
type hop struct {
	*fleet
	oracle         *oracle
	links          map[string]*link // by the replica that it leads to
	front          *replica
	source, target *replica
	turn           int            // makes each prompt a new one
	hits           map[string]int // how often each step was struck
}

// liveOnGPU is the mode of fleets whose requests move live between the memory of GPUs:
// those of a driver without any.
const liveOnGPU = "live, on a GPU"

// newHop runs a fleet whose requests move in the given way; edit, if any, changes
// its file.
func newHop(t *testing.T, mode string, edit func(*config.Fleet)) *hop {
	t.Helper()
	return newHopOf(t, mode, setup{edit: edit})
}

// newHopOf is newHop of a fleet that has some of a setup: edit, faults and onHost.
func newHopOf(t *testing.T, mode string, of setup) *hop {
	t.Helper()
	h := &hop{links: map[string]*link{}, hits: map[string]int{}}
	library := ""
	if mode == liveOnGPU {
		mode, library = config.MigrationLive, fake.CUDA(t)
	}
	h.fleet = newFleet(t, setup{
		replicas: 3,
		library:  library,
		faults:   of.faults,
		onHost:   of.onHost,
		edit: func(c *config.Fleet) {
			c.Migration.Mode = mode
			if of.edit != nil {
				of.edit(c)
			}
		},
		published: func(r *config.Replica) {
			l := newLink(t, r.ID, r.Peer)
			h.links[r.ID], r.Peer = l, l.address
		},
	})
	h.oracle = newOracle(h.fleet)
	h.front, h.source, h.target = h.replicas[0], h.replicas[1], h.replicas[2]
	h.order("drain", h.front.ID)
	h.order("drain", h.target.ID)
	t.Cleanup(func() { t.Logf("struck: %v", h.hits) })
	return h
}

// streams is a few streams of the front's clients that run at the source.
type streams struct {
	over chan struct{} // closed when all have ended
	mu   sync.Mutex
	bad  []string // what is wrong with them
	cut  int      // how many were right and did not come to their end
}

// begin starts streams and waits until the source runs them all.
func (h *hop) begin() *streams {
	h.t.Helper()
	for _, r := range h.replicas {
		h.awaitURL("http://"+r.Admin+"/readyz", "ready")
	}
	h.awaitStatus("only "+h.source.ID+" serves", func(s control.Status) bool {
		for _, r := range h.replicas {
			n := find(s, r.ID)
			if n == nil || !n.Connected || n.Health == "unhealthy" || n.Residents != 0 || (len(n.Drain) == 0) != (r == h.source) {
				return false
			}
		}
		return true
	})
	s := &streams{over: make(chan struct{})}
	var wg sync.WaitGroup
	for i := range hopping {
		h.turn++
		body := prompt(h.turn, 60+100*i, 900)
		wg.Go(func() { h.follow(body, s) })
	}
	go func() { wg.Wait(); close(s.over) }()
	h.awaitStatus("all streams run at "+h.source.ID, func(st control.Status) bool {
		n := find(st, h.source.ID)
		return n != nil && n.Residents == hopping && n.Waiting == 0
	})
	return s
}

// follow reads a stream of the front's and compares its text.
func (h *hop) follow(body []byte, s *streams) {
	want, err := h.oracle.text(body)
	got := ""
	if err == nil {
		got, err = h.ask(body)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil && strings.HasPrefix(want, got):
		s.cut++
		fallthrough
	case err != nil || got != want:
		s.bad = append(s.bad, fmt.Sprintf("%v: %s", err, difference(got, want)))
	}
}

// ask is what the front streams to a client.
func (h *hop) ask(body []byte) (string, error) {
	sent := append(body[:len(body)-1:len(body)-1], `,"stream":true}`...)
	resp, err := h.client.Post("http://"+h.front.Address+"/v1/completions", "application/json", bytes.NewReader(sent))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", errors.New(resp.Status)
	}
	return read(resp.Body)
}

// step is a moment of a move: a message on its way.
type step struct {
	name  string
	kind  transfer.Kind
	to    func(h *hop) *replica
	round uint32 // at least
}

func toSource(h *hop) *replica { return h.source }
func toTarget(h *hop) *replica { return h.target }
func toFront(h *hop) *replica  { return h.front }

// liveSteps are the moments of a live move, in order.
var liveSteps = []step{
	{"open", transfer.Open, toSource, 0},
	{"accept", transfer.Accept, toTarget, 0},
	{"round", transfer.Round, toTarget, 1},
	{"pulled", transfer.Pulled, toSource, 1},
	{"manifest", transfer.Manifest, toTarget, 0},
	{"ready", transfer.Ready, toSource, 0},
	{"commit", transfer.Commit, toFront, 0},
	{"committed to source", transfer.Committed, toSource, 0},
	{"committed to target", transfer.Committed, toTarget, 0},
}

// repromptSteps are those of a move by re-prompting.
var repromptSteps = []step{
	{"open", transfer.Open, toSource, 0},
	{"accept", transfer.Accept, toTarget, 0},
	{"ready", transfer.Ready, toSource, 0},
	{"commit", transfer.Commit, toFront, 0},
	{"committed to source", transfer.Committed, toSource, 0},
	{"committed to target", transfer.Committed, toTarget, 0},
}

// fault is what happens to a fleet at a step.
type fault struct {
	name string
	// strike happens while the message is on its way, and says whether it goes on.
	strike func(h *hop, c crossing) bool
	// always strikes at every message of the step, and not at the first one alone.
	always bool
	// cuts says that streams may end early, with a text that is right so far.
	cuts bool
	// heal undoes it a while later; nil: nothing is to be undone.
	heal func(h *hop)
	// lasts is the time from strike to heal.
	lasts time.Duration
}

// attempts is how often streams are to reach a step before it counts as missed:
// all of them may end before they move so far.
const attempts = 3

// suffer has a fault at the first message of a step of some move.
func (h *hop) suffer(s step, f fault) {
	h.t.Helper()
	name := f.name + " at " + s.name
	for range attempts {
		if h.run(name, s, f) {
			h.hits[s.name]++
			return
		}
		h.t.Logf("%s: the streams ended before it", name)
	}
	h.t.Errorf("%s: the step never came", name)
}

// run has all streams move from the source to the target, with a fault at the
// first message of a step, if it comes. Every text must be the oracle's, and soon
// nothing may be left behind. Then source and target change places.
func (h *hop) run(name string, s step, f fault) (came bool) {
	h.t.Helper()
	running := h.begin()
	struck := make(chan struct{}) // by the first message of the step
	l := h.links[s.to(h).ID]
	var mu sync.Mutex
	strikes, missed := 0, false
	l.onMessage(func(c crossing) (goesOn bool) {
		if c.kind() != s.kind || c.Round < s.round {
			return true
		}
		mu.Lock()
		defer mu.Unlock()
		if missed {
			return true
		}
		if strikes++; strikes == 1 {
			defer close(struck)
		}
		return strikes > 1 && !f.always || f.strike(h, c)
	})
	h.order("undrain", h.target.ID)
	h.order("drain", h.source.ID)
	select {
	case <-struck:
	case <-running.over:
	}
	// What ended the streams may be that very fault, which is striking then. If it is
	// not, it is too late for it.
	mu.Lock()
	came, missed = strikes > 0, strikes == 0
	mu.Unlock()
	if came && f.heal != nil {
		time.Sleep(f.lasts)
		f.heal(h)
	}
	if !f.always {
		l.onMessage(nil)
	}
	select {
	case <-running.over:
	case <-time.After(patience):
		h.t.Fatalf("%s: the streams do not end", name)
	}
	l.onMessage(nil)
	if wrong := len(running.bad); wrong > running.cut || wrong > 0 && !f.cuts {
		h.t.Errorf("%s: %d of %d streams are wrong: %q", name, len(running.bad), hopping, running.bad)
	}
	// Engines keep unreleased blocks for ever, so that a wait of any length finds
	// it, and says nothing of the machine.
	h.awaitEmpty(h.replicas...)
	h.source, h.target = h.target, h.source
	return came
}
