package slothost

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

// TestScenarios runs testdata/*.txt (-rewrite rewrites the expected output). The output
// of a command is what a slot does then. Times are in seconds.
//
//	slot bid-select faults=2 …     a new machine, at time 0; ladder=1,10
//	at 10                          sets the time
//	offer 5 active [stable]        or warm, shadow, canary=50, canary@group, active@group; it replaces
//	                               the stable generation, or the one on trial
//	build 5                        it is built
//	failed text                    the build in progress fails
//	seen 5 calls [faults differ worse compared]
//	fault 5 [times]
//	withdraw 5
//	rollback 5 text
//	status
func TestScenarios(t *testing.T) { testkit.TestScenarios(t, "testdata", newPlayer) }

// player plays a scenario on a machine.
type player struct {
	t   *testing.T
	m   *machine
	fx  effects
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
	testkit.NoError(p.t, err)
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
		p.m.now = p.seconds(words[0])
		p.do(func() {})
		return nil
	case "failed":
		p.do(func() { p.m.endBuild(strings.Join(words, " ")) })
		return nil
	}
	g := lifecycle.Generation(p.number(words[0]))
	words = words[1:]
	text := strings.Join(words, " ")
	switch name {
	case "offer":
		o := p.offer(g, words)
		p.do(func() {
			if err := p.fx.offer(p.m, o); err != nil {
				p.say("refused: %v", err)
			}
		})
	case "seen":
		f := lifecycle.Figures{Compared: p.number(words[0])} // all of them
		for i, to := range []*uint64{&f.Calls, &f.Faults, &f.Differ, &f.Worse, &f.Compared}[:len(words)] {
			*to = p.number(words[i])
		}
		p.do(func() { p.m.observe(g, f, "") })
	case "fault":
		times := uint64(1)
		if len(words) > 0 {
			times = p.number(words[0])
		}
		for range times {
			p.do(func() { p.m.fault(g, "") })
		}
	case "build":
		if p.m.building != g {
			return fmt.Errorf("%d is being built", p.m.building)
		}
		p.do(func() { p.fx.built(p.m) })
	case "withdraw":
		p.do(func() { p.fx.withdraw(p.m, g) })
	case "rollback":
		p.do(func() { p.m.rollBack(g, text) })
	default:
		return fmt.Errorf("unknown command")
	}
	return nil
}

// do changes the machine, and says what a slot does then.
func (p *player) do(change func()) {
	change()
	p.m.advance()
	p.out = append(p.out, p.fx.follow(p.m)...)
}

func (p *player) slot(words []string) {
	c := Gates{}
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
	p.fx = effects{loaded: map[lifecycle.Generation]bool{}}
	if p.m, err = newMachine(lifecycle.Kind(words[0]), c); err != nil {
		p.say("%v", err)
	}
}

func (p *player) offer(g lifecycle.Generation, words []string) offer {
	o := offer{Candidate: lifecycle.Candidate{Generation: g, Module: []byte{}}}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		goal, scope, _ := strings.Cut(name, "@")
		switch goal {
		case "until":
			o.statement.NotAfter = int64(p.number(value)) - 1
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

// effects are what a slot with the machine has in force.
type effects struct {
	route            route
	shadow, building lifecycle.Generation
	cancelled        bool
	loaded           map[lifecycle.Generation]bool
}

// offer adds an offer to the desired state as a control plane does: a stable one in the place
// of the stable one, and one on trial in the place of that, which is stable if it is active.
func (e *effects) offer(m *machine, o offer) error {
	var all []offer
	for _, w := range m.wanted {
		if m.active.is(w.Generation) {
			w.Stable, w.Goal = true, lifecycle.ToActive
		}
		switch {
		case w.Generation < o.Generation && w.Stable && !o.Stable:
			all = []offer{w}
		case w.Generation > o.Generation && !w.Stable && o.Stable:
			all = append(all, w)
		}
	}
	all = append(all, o)
	slices.SortFunc(all, func(a, b offer) int { return cmp.Compare(a.Generation, b.Generation) })
	return m.want(all)
}

// withdraw removes a generation from the desired state.
func (e *effects) withdraw(m *machine, g lifecycle.Generation) {
	_ = m.want(slices.DeleteFunc(slices.Clone(m.wanted), func(o offer) bool { return o.Generation == g }))
}

// built ends the build in progress.
func (e *effects) built(m *machine) {
	g := m.building
	if m.endBuild("") {
		e.loaded[g] = true
	}
}

// follow does what a slot does after a change of its machine, and returns that.
func (e *effects) follow(m *machine) (did []string) {
	say := func(format string, args ...any) { did = append(did, fmt.Sprintf(format, args...)) }
	if m.building != e.building {
		if e.building, e.cancelled = m.building, false; m.building != lifecycle.Native {
			say("build %d", m.building)
		}
	}
	if !e.cancelled && m.building != lifecycle.Native && !m.candidate.is(m.building) {
		e.cancelled = true
		say("cancel %d", m.building)
	}
	if r := m.route(); r != e.route {
		e.route = r
		say("switch to %s", routeText(r))
	}
	if g := m.shadow(); g != e.shadow {
		e.shadow = g
		say("shadow %d", g)
	}
	for _, g := range slices.Sorted(maps.Keys(e.loaded)) {
		if m.find(g) == nil {
			delete(e.loaded, g)
			say("close %d", g)
		}
	}
	return did
}

func routeText(r route) string {
	s := fmt.Sprint(r.active)
	if r.candidate != lifecycle.Native && r.scope != "" {
		s += fmt.Sprintf(", %d in %s", r.candidate, r.scope)
	} else if r.candidate != lifecycle.Native {
		s += fmt.Sprintf(", %d for %d ‰", r.candidate, r.permille)
	}
	return s
}

func (p *player) status() {
	s := p.m.slotStatus()
	p.say("route %s", routeText(route{s.Active, s.Candidate, s.Permille, s.Scope}))
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
