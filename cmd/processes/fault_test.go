package processes

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/config"
)

// stopped is how long a stopped process stays so: longer than any lease.
const stopped = 3500 * time.Millisecond

// victim is a process that something happens to.
type victim struct {
	name    string
	process func(h *hop) **process
	start   func(h *hop) // a new one in its place
}

func victims() []victim {
	engine := func(of func(h *hop) *replica) (func(h *hop) **process, func(h *hop)) {
		return func(h *hop) **process { return &of(h).engine }, func(h *hop) { of(h).startEngine() }
	}
	migrator := func(of func(h *hop) *replica) (func(h *hop) **process, func(h *hop)) {
		return func(h *hop) **process { return &of(h).migrator }, func(h *hop) { of(h).startMigrator() }
	}
	var out []victim
	add := func(name string, p func(h *hop) **process, s func(h *hop)) { out = append(out, victim{name, p, s}) }
	p, s := engine(toSource)
	add("source's engine", p, s)
	p, s = engine(toTarget)
	add("target's engine", p, s)
	p, s = migrator(toSource)
	add("source's migrator", p, s)
	p, s = migrator(toTarget)
	add("target's migrator", p, s)
	return out
}

// killed is a process that dies without a word, and is started again.
func killed(v victim) fault {
	return fault{
		name:   v.name + " killed",
		strike: func(h *hop, _ crossing) bool { (*v.process(h)).kill(); return true },
		lasts:  time.Second,
		heal:   v.start,
	}
}

// frozen is a process that stands still for a while.
func frozen(v victim) fault {
	return fault{
		name:   v.name + " stopped",
		strike: func(h *hop, _ crossing) bool { (*v.process(h)).signal(syscall.SIGSTOP); return true },
		lasts:  stopped,
		heal:   func(h *hop) { (*v.process(h)).signal(syscall.SIGCONT) },
	}
}

// slow skips a test that the slow ones belong to.
func slow(t *testing.T) {
	if !everything {
		t.Skip("takes minutes; set CASCADE_TEST_ALL=1")
	}
	t.Parallel()
}

// TestProcessesDie kills and stops the processes of both sides of a move, at
// each of its steps.
func TestProcessesDie(t *testing.T) {
	slow(t)
	for mode, steps := range map[string][]step{config.MigrationLive: liveSteps, config.MigrationReprompt: repromptSteps} {
		for _, v := range victims() {
			if only := os.Getenv("VICTIM"); only != "" && only != v.name {
				continue
			}
			t.Run(mode+"/"+v.name, func(t *testing.T) {
				t.Parallel()
				h := newHop(t, mode)
				for _, s := range steps {
					h.suffer(s, killed(v))
					h.suffer(s, frozen(v))
				}
			})
		}
	}
}
