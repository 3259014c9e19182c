package processes

import (
	"syscall"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
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
		strike: func(h *hop) { v.process(h).Kill() },
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
		strike: func(h *hop) { v.process(h).Signal(syscall.SIGSTOP) },
		lasts:  stopped,
		heal:   func(h *hop) { v.process(h).Signal(syscall.SIGCONT) },
	}
}

// ways are the steps of a migration, by mode.
var ways = map[string][]step{config.MigrationLive: liveSteps, liveOnGPU: liveSteps, config.MigrationReprompt: repromptSteps}

// TestProcessesDie kills and suspends the processes of both sides of a migration, at each of its
// steps.
func TestProcessesDie(t *testing.T) {
	testkit.SkipSlow(t)
	t.Parallel()
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
