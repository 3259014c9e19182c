package enginestate

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// tick is the driver's time between two checks.
const tick = 250 * time.Millisecond

// cost is easy to add up: 20 ms a step and 0.1 ms a prompt token.
var cost = policies.Cost{D0: 20e-3, D2: 0.1e-3}

// TestMonitorScenarios runs testdata/monitor/*.txt (package testkit). The output of a command is each
// change of the state, with the time at which it was seen. The commands:
//
//	work Running=2 Held=100 Longest=60 Waiting=1 Promised=50 LongestPrompt=50
//	brings 3s      something comes with every check of that time
//	silent 3s      nothing does
//	suspended 1h   the process does not run; then one check
//	min-pause 5s   another engine is watched, with this pause of New
//	give-up | resume | limit
func TestMonitorScenarios(t *testing.T) {
	testkit.TestScenarios(t, "testdata/monitor", func(*testing.T) testkit.Player {
		m, now, brought, last := NewMonitor(cost, MinPause, 0), time.Duration(0), uint64(0), Progressing
		var work Work
		check := func(d time.Duration) (out []string) {
			now += d
			if s := m.Check(now, brought, work); s != last {
				last, out = s, []string{fmt.Sprintf("%v %v", now, s)}
			}
			return out
		}
		return func(words []string) (out []string, err error) {
			var d time.Duration
			if len(words) == 2 {
				d, _ = time.ParseDuration(words[1])
			}
			switch words[0] {
			case "work":
				work = Work{}
				return nil, testkit.SetFields(&work, words[1:])
			case "min-pause":
				m = NewMonitor(cost, d, brought)
			case "give-up":
				m.GiveUp(now)
			case "resume":
				m.Resume()
			case "suspended":
				return check(d), nil
			case "limit":
				return []string{m.Limit().Round(time.Millisecond).String()}, nil
			case "brings", "silent":
				for end := now + d; now < end; {
					if words[0] == "brings" {
						brought++
					}
					out = append(out, check(tick)...)
				}
			default:
				return nil, fmt.Errorf("unknown command")
			}
			return out, nil
		}
	})
}

// monitoredEngine is an honest engine: first come, first served, one chunk of prompts a step. It
// counts what it does in whole steps, and is the oracle of the random test.
type monitoredEngine struct {
	slow    float64           // times its profile
	running []policies.Tokens // lengths
	waiting []policies.Tokens // what is left of each prompt
	prompts []policies.Tokens // its length
	done    time.Duration     // when the present step ends
	tokens  uint64
}

// runUntil runs the steps that end until then.
func (e *monitoredEngine) runUntil(now time.Duration) {
	for e.done <= now {
		for i := range e.running {
			e.running[i]++
			e.tokens++
		}
		budget, start := policies.Tokens(StepTokens), float64(0)
		n, held, longest := len(e.running), policies.Tokens(0), policies.Tokens(0)
		for _, l := range e.running {
			held, longest = held+l, max(longest, l)
		}
		computed, squares := policies.Tokens(0), float64(0)
		for len(e.waiting) > 0 && budget > 0 {
			chunk := min(e.waiting[0], budget)
			start = float64(e.prompts[0] - e.waiting[0])
			squares += (start+float64(chunk))*(start+float64(chunk)) - start*start
			e.waiting[0] -= chunk
			budget, computed = budget-chunk, computed+chunk
			if e.waiting[0] > 0 {
				break
			}
			e.running = append(e.running, e.prompts[0])
			e.tokens++
			e.waiting, e.prompts = e.waiting[1:], e.prompts[1:]
		}
		step := cost.D0 + cost.D2*float64(computed) + squareCost*squares
		if n > 0 {
			step += cost.D4 * float64(held)
		}
		e.done += time.Duration(e.slow * step * float64(time.Second))
	}
}

const squareCost = 1e-9

func (e *monitoredEngine) work() Work {
	w := Work{Running: len(e.running), Waiting: len(e.prompts)}
	for _, l := range e.running {
		w.Held, w.Longest = w.Held+l, max(w.Longest, l)
	}
	for _, l := range e.prompts {
		w.Promised, w.LongestPrompt = w.Promised+l, max(w.LongestPrompt, l)
	}
	return w
}

// TestHonestEngines checks random loads on engines that take up to 2.5 times what their
// profile predicts: none is ever found hung. Then each stops, and is found hung within the
// limit that holds at that time.
func TestHonestEngines(t *testing.T) {
	profile := cost
	profile.D3 = squareCost
	longest := time.Duration(0) // of the pauses of engines that were not hung
	for seed := range uint64(testkit.Size(200, 2000)) {
		rng := rand.New(rand.NewPCG(seed, 14))
		e, m := &monitoredEngine{slow: 0.2 + 2.3*rng.Float64()}, NewMonitor(profile, MinPause, 0)
		now := time.Duration(0)
		for range 400 {
			now += tick
			e.runUntil(now)
			if rng.IntN(20) == 0 {
				l := policies.Tokens(1 + rng.IntN(120_000))
				e.waiting, e.prompts = append(e.waiting, l), append(e.prompts, l)
			}
			if rng.IntN(10) == 0 && len(e.running) > 0 {
				e.running = e.running[1:] // it ends
			}
			if s := m.Check(now, e.tokens, e.work()); s == Hung {
				t.Fatalf("seed %d: an engine at %.1f × its profile is found hung after %v: %+v", seed, e.slow, m.Pause(), e.work())
			}
			longest = max(longest, m.Pause())
		}
		if e.work().Idle() {
			e.prompts = append(e.prompts, 1)
		}
		limit := time.Duration(0)
		for stopped := now; m.Check(now, e.tokens, e.work()) != Hung; now += tick {
			if limit = m.Limit(); now-stopped > limit+tick {
				t.Fatalf("seed %d: an engine that stopped %v ago is not found hung; the limit is %v", seed, now-stopped, limit)
			}
		}
	}
	t.Logf("longest pause of an honest engine: %v", longest)
	if longest < 2*MinPause {
		t.Error("no engine had a long step: the test proves too little")
	}
}
