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

// hopping is how many streams migrate at once.
const hopping = 3

// hop is a fleet of three. The first replica is the front end of every stream and runs none; the
// two others alternate as source and target. Their messages to each other cross links.
type hop struct {
	*fleet
	oracle         *oracle
	links          map[string]*link // by the replica behind the link
	front          *replica
	source, target *replica
	turn           int            // makes each prompt different
	hits           map[string]int // number of faults injected, by step
}

// liveOnGPU is the mode of fleets whose requests migrate live between GPU memories, of a fake
// driver without GPUs.
const liveOnGPU = "live, on a GPU"

// newHop runs a fleet whose requests migrate in the given mode; edit, if any, changes its file.
func newHop(t *testing.T, mode string, edit func(*config.Fleet)) *hop {
	t.Helper()
	return newHopOf(t, mode, setup{edit: edit})
}

// newHopOf is newHop with a setup, of which it uses edit, faults and onHost.
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

// streams are a few streams of the front end's clients that run at the source.
type streams struct {
	over chan struct{} // closed when all have ended
	mu   sync.Mutex
	bad  []string // errors of the streams
	cut  int      // streams that had the right text but ended early
}

// begin starts streams and waits until the source runs all of them.
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

// follow reads a stream of the front end and compares its text.
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
		s.bad = append(s.bad, fmt.Sprintf("%v: %s", err, firstDifference(got, want)))
	}
}

// ask returns the text that the front end streams to a client.
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

// step is a point of a migration, identified by a message in transit.
type step struct {
	name  string
	kind  transfer.Kind
	to    func(h *hop) *replica
	round uint32 // minimum round
}

func toSource(h *hop) *replica { return h.source }
func toTarget(h *hop) *replica { return h.target }
func toFront(h *hop) *replica  { return h.front }

// liveSteps are the steps of a live migration, in order.
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

// repromptSteps are the steps of a migration by re-prompting.
var repromptSteps = []step{
	{"open", transfer.Open, toSource, 0},
	{"accept", transfer.Accept, toTarget, 0},
	{"ready", transfer.Ready, toSource, 0},
	{"commit", transfer.Commit, toFront, 0},
	{"committed to source", transfer.Committed, toSource, 0},
	{"committed to target", transfer.Committed, toTarget, 0},
}

// fault is a fault that is injected into a fleet at a step.
type fault struct {
	name string
	// strike injects the fault while the message is in transit, and reports whether to forward the
	// message.
	strike func(h *hop, c crossing) bool
	// always makes strike run at every message of the step, not only at the first.
	always bool
	// cuts allows streams to end early, if their text so far is right.
	cuts bool
	// heal undoes the fault later; nil: there is nothing to undo.
	heal func(h *hop)
	// lasts is the time from strike to heal.
	lasts time.Duration
}

// attempts is how often streams may fail to reach a step: all of them may end before their
// migration gets that far.
const attempts = 3

// injectFault injects a fault at the first message of a step of some migration.
func (h *hop) injectFault(s step, f fault) {
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

// run migrates all streams from the source to the target, with a fault at the first message of a
// step, if it occurs. Every text must equal the oracle's, and soon nothing may be left behind. Then
// source and target swap roles.
func (h *hop) run(name string, s step, f fault) (came bool) {
	h.t.Helper()
	running := h.begin()
	struck := make(chan struct{}) // closed by the first message of the step
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
	// The fault itself may have ended the streams, and strike may still be running. Otherwise the
	// fault comes too late.
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
	// Engines keep unreleased blocks forever, so a wait of any length detects them, on a host of
	// any speed.
	h.awaitEmpty(h.replicas...)
	h.source, h.target = h.target, h.source
	return came
}
