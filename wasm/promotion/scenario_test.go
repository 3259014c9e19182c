package promotion

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

// TestScenarios runs testdata/*.txt (-rewrite rewrites the expected output). The output
// of a command is the machine's actions. Times are in seconds.
//
//	slot bid-select faults=2 …     a new machine, at time 0; ladder=1,10
//	at 10                          sets the time, with a tick
//	offer 5 active [stable]        or warm, shadow, canary=50, canary@group, active@group
//	build 5                        verified, compiled and warmed, each when requested
//	verified|compiled|warmed 5     one of them
//	failed 5 text
//	seen 5 calls [faults differ worse compared]
//	fault 5 [times]
//	withdraw 5
//	rollback 5 text
//	status
func TestScenarios(t *testing.T) { testkit.TestScenarios(t, "testdata", newPlayer) }

// player plays a scenario on a machine.
type player struct {
	t   *testing.T
	m   *Machine
	now policies.Micros
	out []string
}

func newPlayer(t *testing.T) testkit.Player {
	p := &player{t: t}
	return func(words []string) ([]string, error) {
		p.out = nil
		err := p.command(words[0], words[1:])
		return p.out, err
	}
}

func (p *player) say(format string, args ...any) { p.out = append(p.out, fmt.Sprintf(format, args...)) }

func (p *player) number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

func (p *player) seconds(s string) policies.Micros {
	return policies.Micros(p.number(s)) * policies.Second
}

func (p *player) command(name string, words []string) error {
	switch name {
	case "slot":
		p.slot(words)
		return nil
	case "status":
		p.status()
		return nil
	case "at":
		p.now = p.seconds(words[0])
		p.step(Event{Kind: Ticked})
		return nil
	}
	ev := Event{Generation: lifecycle.Generation(p.number(words[0]))}
	words = words[1:]
	times := uint64(1)
	switch name {
	case "offer":
		ev.Kind, ev.Offer = Offered, p.offer(ev.Generation, words)
	case "seen":
		ev.Kind, ev.Figures.Compared = Observed, p.number(words[0]) // all of them
		f := &ev.Figures
		for i, to := range []*uint64{&f.Calls, &f.Faults, &f.Differ, &f.Worse, &f.Compared}[:len(words)] {
			*to = p.number(words[i])
		}
	case "fault":
		ev.Kind = Faulted
		if len(words) > 0 {
			times = p.number(words[0])
		}
	case "build":
		for _, ev.Kind = range []EventKind{Verified, Compiled} {
			p.step(ev)
		}
		ev.Kind = Warmed
	default:
		var ok bool
		ev.Kind, ok = map[string]EventKind{"verified": Verified, "compiled": Compiled, "warmed": Warmed, "failed": Failed,
			"withdraw": Withdrawn, "rollback": RolledBack}[name]
		if ev.Reason = strings.Join(words, " "); !ok {
			return fmt.Errorf("unknown command")
		}
	}
	for range times {
		p.step(ev)
	}
	return nil
}

func (p *player) slot(words []string) {
	c := Config{Kind: lifecycle.Kind(words[0])}
	for _, w := range words[1:] {
		switch name, value, _ := strings.Cut(w, "="); name {
		case "ladder":
			c.Ladder = []int{}
			for permille := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == ',' }) {
				c.Ladder = append(c.Ladder, int(p.number(permille)))
			}
		case "faults":
			c.Faults = int(p.number(value))
		case "worse":
			c.Shadow.Worse = int(p.number(value))
		case "differ":
			c.Shadow.Differ = int(p.number(value))
		case "patience":
			c.Patience = p.seconds(value)
		case "shadow":
			c.Shadow.Calls = p.number(value)
		case "canary":
			c.Canary.Calls = p.number(value)
		case "compared":
			c.Canary.Compared = p.number(value)
		default:
			p.t.Fatalf("unknown setting %q", w)
		}
	}
	var err error
	p.now = 0
	if p.m, err = New(c); err != nil {
		p.say("%v", err)
	}
}

func (p *player) offer(g lifecycle.Generation, words []string) Offer {
	o := Offer{Generation: g}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		goal, scope, _ := strings.Cut(name, "@")
		switch goal {
		case "until":
			o.Until = p.seconds(value)
		case "stable":
			o.Stable = true
		default:
			o.Scope = scope
			if value != "" {
				o.Permille = int(p.number(value))
			}
			for g := range lifecycle.ToActive + 1 {
				if g.String() == goal {
					o.Goal = g
				}
			}
		}
	}
	return o
}

func (p *player) step(ev Event) {
	ev.Now = p.now
	actions, err := p.m.Step(ev, nil)
	if err != nil {
		p.say("refused: %v", err)
	}
	for _, a := range actions {
		if a.Kind == Switch {
			p.say("switch to %s", routeText(a.Route))
		} else {
			p.say("%s %d", a.Kind, a.Generation)
		}
	}
}

func routeText(r Route) string {
	s := fmt.Sprint(r.Active)
	if r.Candidate != lifecycle.Native && r.Scope != "" {
		s += fmt.Sprintf(", %d in %s", r.Candidate, r.Scope)
	} else if r.Candidate != lifecycle.Native {
		s += fmt.Sprintf(", %d for %d ‰", r.Candidate, r.Permille)
	}
	return s
}

func (p *player) status() {
	s := p.m.Status()
	p.say("route %s", routeText(Route{s.Active, s.Candidate, s.Permille, s.Scope}))
	for _, l := range s.Modules {
		text := fmt.Sprintf("%d %s since %d, to %s", l.Generation, l.Phase, l.SinceUnixMillis/1000, l.Goal)
		if l.Figures != (lifecycle.Figures{}) {
			text += fmt.Sprintf(", %+v", l.Figures)
		}
		if l.Reason != "" {
			text += ": " + l.Reason
		}
		if l.Blocked != "" {
			text += "; blocked: " + l.Blocked
		}
		if l.Inconclusive != "" {
			text += "; inconclusive: " + l.Inconclusive
		}
		p.say("%s", text)
	}
}
