package enginestate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestScenarios runs testdata/*.txt on one machine, whose engine is checked every 500 ms and may hang for 10 s (package
// testkit). The output of an event is the actions that follow; that of a tick only if it differs from the one before.
// The commands:
//
//	at 5s                                  time of the events from here on
//	tick | tick 4s                         once, or every 250 ms of that time
//	work Running=2 Held=100                what the engine has to do from here on
//	brings 3                               so many tokens have come
//	load-due | given-up 3                  from here on
//	counters 7 | requested | due
//	checked passed | checked passed generated | checked refused …
//	opened | opened not
//
// Accept and Refuse make the engine ready and not ready; not-ready does too, as another goroutine.
func TestScenarios(t *testing.T) {
	testkit.TestScenarios(t, "testdata", func(*testing.T) testkit.Player {
		p := &player{m: New(Config{Cost: cost, MinPause: MinPause, HealthInterval: 500 * time.Millisecond, HangTimeout: 10 * time.Second})}
		return p.play
	})
}

var (
	kinds    = map[string]EventKind{"tick": Ticked, "counters": Sampled, "requested": CheckRequested, "due": CheckDue, "checked": Checked, "opened": Opened}
	outcomes = map[string]Outcome{"passed": Passed, "unhealthy": Unhealthy, "refused": Refused, "late": Late, "other": OtherEngine, "local": LocalFault}
)

type player struct {
	m  *Machine
	ev Event // the next one
}

func (p *player) play(words []string) (out []string, err error) {
	argument := ""
	if len(words) > 1 {
		argument = words[1]
	}
	var n uint64
	fmt.Sscan(argument, &n)
	switch words[0] {
	case "at":
		p.ev.Now, err = time.ParseDuration(argument)
	case "work":
		p.ev.Work = Work{}
		err = testkit.SetFields(&p.ev.Work, words[1:])
	case "brings":
		p.ev.Brought += n
	case "given-up":
		p.ev.GivenUp = n
	case "load-due":
		p.ev.LoadDue = true
	case "not-ready":
		p.ev.Ready = false
	case "tick":
		took, _ := time.ParseDuration(argument)
		last := ""
		for end := p.ev.Now + took; ; p.ev.Now += tick {
			line := p.step(Event{Kind: Ticked})
			if line != "" && line != last {
				last = line
				out = append(out, fmt.Sprintf("%v %s", p.ev.Now, line))
			}
			if p.ev.Now+tick > end {
				return out, nil
			}
		}
	default:
		ev := Event{Kind: kinds[words[0]], Counters: n, Outcome: outcomes[argument], Generated: len(words) > 2, Open: argument != "not"}
		if ev.Kind == 0 {
			return nil, fmt.Errorf("unknown command")
		}
		if line := p.step(ev); line != "" {
			out = []string{line}
		}
	}
	return out, err
}

// step passes an event with what holds for all, and returns the actions on one line.
func (p *player) step(ev Event) string {
	ev.Now, ev.Ready, ev.Brought, ev.Work, ev.GivenUp, ev.LoadDue = p.ev.Now, p.ev.Ready, p.ev.Brought, p.ev.Work, p.ev.GivenUp, p.ev.LoadDue
	var names []string
	for _, a := range p.m.Step(ev) {
		name := a.Kind.String()
		switch {
		case a.Kind == NextCheck:
			name += fmt.Sprintf("(%v)", a.After)
		case a.Generate:
			name += "(generate)"
		case a.Kind == Accept:
			p.ev.Ready = true
		case a.Kind == Refuse:
			p.ev.Ready = false
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}
