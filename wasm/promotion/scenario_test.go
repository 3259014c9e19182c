package promotion

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

var update = flag.Bool("update", false, "rewrite the expectations of the scenarios; read the difference")

// TestScenarios plays every testdata/*.txt. A line is a command, or, after ">", a result
// of the command before; "#" begins a comment. Times are in seconds.
//
//	slot bid-select floor=3 …      a new machine, at time 0; ladder=1,10 faults=2 resume=2
//	at 10                          sets the time, with a tick
//	offer 5 active [stable]        or warm, shadow, canary=50, canary@group, active@group
//	build 5                        verified, compiled and warmed, each when requested
//	verified|compiled|warmed 5     one of them
//	failed 5 text
//	seen 5 calls [faults differ worse]
//	fault 5 [times]
//	withdraw 5
//	rollback 5 text
//	status
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(text))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(text), "\n")
			for i := range min(len(gotLines), len(wantLines)) {
				if gotLines[i] != wantLines[i] {
					t.Fatalf("%s:%d: got\n%s\nwant\n%s", file, i+1, gotLines[i], wantLines[i])
				}
			}
			if len(gotLines) != len(wantLines) {
				t.Fatalf("%s: %d lines, want %d", file, len(gotLines), len(wantLines))
			}
		})
	}
}

// player plays a scenario on a machine.
type player struct {
	t   *testing.T
	m   *Machine
	now policies.Micros
	out []string
}

func play(t *testing.T, text string) string {
	p := &player{t: t}
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, ">") {
			continue
		}
		p.out = append(p.out, line)
		if words := strings.Fields(line); len(words) > 0 && words[0][0] != '#' {
			p.command(words)
		}
	}
	return strings.Join(p.out, "\n")
}

func (p *player) say(format string, args ...any) {
	p.out = append(p.out, "> "+fmt.Sprintf(format, args...))
}

func (p *player) command(words []string) {
	rest := strings.Join(words[min(2, len(words)):], " ")
	var g lifecycle.Generation
	if len(words) > 1 && words[0] != "slot" {
		g = lifecycle.Generation(p.number(words[1]))
	}
	switch words[0] {
	case "slot":
		p.slot(words[1:])
	case "at":
		p.now = policies.Micros(g) * policies.Second
		p.step(Event{Kind: Ticked})
	case "offer":
		p.step(Event{Kind: Offered, Offer: p.offer(g, words[2:])})
	case "build":
		for _, k := range []EventKind{Verified, Compiled, Warmed} {
			p.step(Event{Kind: k, Generation: g})
		}
	case "verified":
		p.step(Event{Kind: Verified, Generation: g})
	case "compiled":
		p.step(Event{Kind: Compiled, Generation: g})
	case "warmed":
		p.step(Event{Kind: Warmed, Generation: g})
	case "failed":
		p.step(Event{Kind: Failed, Generation: g, Reason: rest})
	case "seen":
		f := lifecycle.Figures{}
		for i, to := range []*uint64{&f.Calls, &f.Faults, &f.Differ, &f.Worse, &f.Compared} {
			if len(words) > 2+i {
				*to = p.number(words[2+i])
			}
		}
		if len(words) < 7 { // all of them
			f.Compared = f.Calls
		}
		p.step(Event{Kind: Observed, Generation: g, Figures: f})
	case "fault":
		n := uint64(1)
		if len(words) > 2 {
			n = p.number(words[2])
		}
		for range n {
			p.step(Event{Kind: Faulted, Generation: g})
		}
	case "withdraw":
		p.step(Event{Kind: Withdrawn, Generation: g})
	case "rollback":
		p.step(Event{Kind: RolledBack, Generation: g, Reason: rest})
	case "status":
		p.status()
	default:
		p.t.Fatalf("unknown command %q", words[0])
	}
}

func (p *player) number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

func (p *player) slot(words []string) {
	c := Config{Kind: lifecycle.Kind(words[0])}
	for _, w := range words[1:] {
		name, value, _ := strings.Cut(w, "=")
		switch name {
		case "ladder":
			c.Ladder = []int{}
			for _, s := range strings.Split(value, ",") {
				if s != "" {
					c.Ladder = append(c.Ladder, int(p.number(s)))
				}
			}
		case "faults":
			c.Faults = int(p.number(value))
		case "floor":
			c.Floor = lifecycle.Generation(p.number(value))
		case "resume":
			c.Resume = append(c.Resume, lifecycle.Generation(p.number(value)))
		case "worse":
			c.Shadow.Worse = int(p.number(value))
		case "differ":
			c.Shadow.Differ = int(p.number(value))
		case "patience":
			c.Patience = policies.Micros(p.number(value)) * policies.Second
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
		name, scope, _ := strings.Cut(w, "@")
		name, permille, _ := strings.Cut(name, "=")
		if name == "until" {
			o.Until = policies.Micros(p.number(permille)) * policies.Second
			continue
		}
		if name == "stable" {
			o.Stable = true
			continue
		}
		for goal := lifecycle.ToWarm; goal <= lifecycle.ToActive; goal++ {
			if goal.String() == name {
				o.Goal = goal
			}
		}
		o.Scope = scope
		if permille != "" {
			o.Permille = int(p.number(permille))
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
	p.say("route %s, floor %d", routeText(Route{s.Active, s.Candidate, s.Permille, s.Scope}), s.Floor)
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
