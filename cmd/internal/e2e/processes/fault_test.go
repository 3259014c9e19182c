package processes

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/move"
)

// stopped is how long a suspended process stays so: longer than any lease.
const stopped = 3500 * time.Millisecond

// victim is a process that a fault affects: the engine of a replica, or its migrator.
type victim struct {
	name   string
	of     func(h *hop) *replica
	engine bool
}

var victims = []victim{
	{"source's engine", toSource, true}, {"target's engine", toTarget, true}, {"source's migrator", toSource, false}, {"target's migrator", toTarget, false},
}

func (v victim) process(h *hop) *harness.Daemon {
	if v.engine {
		return v.of(h).engine
	}
	return v.of(h).migrator
}

// killed kills a process without a shutdown, and starts it again.
func killed(v victim) fault {
	return fault{
		name:   v.name + " killed",
		strike: func(h *hop, _ crossing) bool { v.process(h).Kill(); return true },
		lasts:  time.Second,
		heal: func(h *hop) {
			if v.engine {
				v.of(h).startEngine()
			} else {
				v.of(h).startMigrator()
			}
		},
	}
}

// frozen suspends a process for a while.
func frozen(v victim) fault {
	return fault{
		name:   v.name + " stopped",
		strike: func(h *hop, _ crossing) bool { v.process(h).Signal(syscall.SIGSTOP); return true },
		lasts:  stopped,
		heal:   func(h *hop) { v.process(h).Signal(syscall.SIGCONT) },
	}
}

// skipSlow skips a slow test unless slow tests are enabled, and lets it run in parallel.
func skipSlow(t *testing.T) {
	t.Helper()
	testkit.SkipSlow(t)
	t.Parallel()
}

// live runs a slow test for both modes of live migration.
func live(t *testing.T, test func(t *testing.T, mode string)) {
	skipSlow(t)
	for _, mode := range []string{config.MigrationLive, liveOnGPU} {
		t.Run(mode, func(t *testing.T) { t.Parallel(); test(t, mode) })
	}
}

// ways are the steps of a migration, by mode.
var ways = map[string][]step{config.MigrationLive: liveSteps, liveOnGPU: liveSteps, config.MigrationReprompt: repromptSteps}

// TestProcessesDie kills and suspends the processes of both sides of a migration, at each of its
// steps.
func TestProcessesDie(t *testing.T) {
	skipSlow(t)
	for mode, steps := range ways {
		for _, v := range victims {
			t.Run(mode+"/"+v.name, func(t *testing.T) {
				t.Parallel()
				h := newHop(t, mode, setup{})
				for _, s := range steps {
					h.injectFault(s, killed(v))
					h.injectFault(s, frozen(v))
				}
			})
		}
	}
}

// broken changes the state of the link that carries the step's message.
func broken(name string, s step, how state, lasts time.Duration) fault {
	return fault{
		name:   "link " + name,
		strike: func(h *hop, _ crossing) bool { h.links[s.to(h).ID].set(how); return true },
		lasts:  lasts,
		heal:   func(h *hop) { h.links[s.to(h).ID].set(open) },
	}
}

// TestLinksBreak loses messages on the links between migrators, and cuts, silences and delays the
// links, at each step of a migration.
func TestLinksBreak(t *testing.T) {
	skipSlow(t)
	for mode, steps := range ways {
		for name, faults := range map[string]func(s step) []fault{
			"short": func(s step) []fault {
				return []fault{
					{name: "message lost", strike: func(*hop, crossing) bool { return false }},
					broken("cut", s, cut, 1500*time.Millisecond),
				}
			},
			"long": func(s step) []fault {
				return []fault{broken("silent", s, dead, stopped), broken("slow", s, delayed, stopped)}
			},
		} {
			t.Run(mode+"/"+name, func(t *testing.T) {
				t.Parallel()
				h := newHop(t, mode, setup{})
				for _, s := range steps {
					for _, f := range faults(s) {
						h.injectFault(s, f)
					}
				}
			})
		}
	}
}

// TestMessagesLie alters every block table in transit: a replica decodes only what it has verified,
// and so no request migrates live.
func TestMessagesLie(t *testing.T) { live(t, messagesLie) }

func messagesLie(t *testing.T, mode string) {
	h := newHop(t, mode, setup{})
	flip := func(list []uint32) {
		for i := range list {
			list[i] ^= 1
		}
	}
	for _, s := range []step{liveSteps[2], liveSteps[4]} { // round, manifest
		for name, lie := range map[string]func(c crossing){
			"sums": func(c crossing) { flip(c.Sums) }, "ids": func(c crossing) { flip(c.Ids) }, "blocks": func(c crossing) { flip(c.Blocks) },
			"last id": func(c crossing) { flip(c.Ids[max(0, len(c.Ids)-1):]) }, "hash": func(c crossing) { c.IdsHash++ },
		} {
			if name == "hash" && s.kind != move.Manifest {
				continue
			}
			source := h.source.ID
			done := h.done(source)
			h.injectFault(s, fault{name: "false " + name, always: true, strike: func(_ *hop, c crossing) bool { lie(c); return true }})
			if n := h.done(source) - done; n != 0 {
				t.Errorf("false %s at %s: %d requests migrated", name, s.name, n)
			}
		}
	}
	h.tally()
}

// done counts the migrations away from a replica that the control plane reports as done.
func (h *hop) done(from string) (n int) {
	h.T.Helper()
	for _, m := range h.migrations() {
		if m.State == "done" && string(m.From) == from {
			n++
		}
	}
	return n
}

// TestFrontEndDies kills the front end at each step of its requests' migrations: nothing of them
// remains, frozen or reserved, on any replica.
func TestFrontEndDies(t *testing.T) {
	skipSlow(t)
	for mode, steps := range ways {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			h := newHop(t, mode, setup{})
			for _, s := range steps {
				h.injectFault(s, fault{
					name:   "front killed",
					strike: func(h *hop, _ crossing) bool { h.front.migrator.Kill(); return true },
					cuts:   true,
					heal: func(h *hop) {
						h.awaitEmpty(h.replicas...)
						h.front.startMigrator()
					},
				})
			}
		})
	}
}

// TestNoRoom sells requests to a replica whose engine is full of requests that its migrator does
// not know: it rejects them, and accepts them later.
func TestNoRoom(t *testing.T) { live(t, noRoom) }

func noRoom(t *testing.T, mode string) {
	h := newHop(t, mode, setup{edit: func(c *config.Fleet) { c.Models[0].Context, c.Models[0].KVTokens = 2048, 4096 }})
	for range 4 {
		running := h.begin(900)
		var fill sync.WaitGroup
		for i := range 3 {
			h.turn++
			body := harness.Prompt(h.turn, 4600+500*i, 300)
			fill.Go(func() {
				resp, err := h.HTTP.Post(h.target.Engine+"/v1/completions", "application/json", bytes.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
					t.Errorf("%s: %s %v", resp.Status, text, err)
				}
			})
		}
		h.leaveSource()
		fill.Wait()
		for _, s := range running {
			if err := s.Whole(); err != nil {
				t.Error(err)
			}
		}
		h.awaitEmpty(h.replicas...)
		h.swap()
	}
	if !strings.Contains(h.source.migrator.Log.String()+h.target.migrator.Log.String(), "reservation refused") {
		t.Error("no reservation was refused")
	}
	if h.tally() == 0 {
		t.Error("no request migrated")
	}
}
