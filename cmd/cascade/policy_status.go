package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

const (
	// shownDigest is how many digits of a module's hash are shown.
	shownDigest = 12
	// shownEnds is how many of the generations that were rolled back are shown.
	shownEnds = 3
)

func newPolicyStatus(s *settings) *cobra.Command {
	f := &statusFlags{}
	c := &cobra.Command{
		Use:   "status [SLOT...]",
		Short: "Show what decides in the slots of a running fleet, host by host",
		Long: `Status shows for each slot what the fleet runs, what is on trial and how far it may go,
and what was taken back and why; then, where there are modules, for each host which
generation decides there, how many calls it answered, in shadow recorded ones, how many
of them the built-in policy had to answer (faults), and, of one on trial, how many
answers were compared with those of the policy in force, how many of these it answered
otherwise (differ), and how many are worse by the host's own measure: a bid that loads
more or starts later and is better in neither, or none where there was one; a partition
that costs more by a quarter, or none where there was one; a boundary that serves worse
by a twentieth, and no better than the one that it would move. "cascade policy
records" shows them. Column reason is what it waits for, and for about how long; or that it
"would not be promoted", and ends if it is: too many of its answers are worse; or that
it is "inconclusive": too many are, of too few to judge by, and it goes no further until
that is known, on other hosts either. Where the machine did not run a module in time,
the built-in policy answers, too; that is not a fault; column reason has the number (starved).

A host where a module is "not asked yet" passes no gate: when others have had it decide
for 30 s, and none is inconclusive, it follows them.

Generation 0 is the built-in policy. A host is a migrator, or a control plane
("control/NAME"), whose slots are partition and guard.`,
		Example: `  cascade policy status
  cascade policy status bid-select --watch
  cascade policy status --json | jq '.slots[] | {slot, stable: .stable.sha256}'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				if err := requireSlots(cmd, args); err != nil {
					return err
				}
			}
			base, err := f.baseURL(cmd)
			if err != nil {
				return err
			}
			r := controlRequest{base: base, path: "policies", query: url.Values{"slot": args}}
			return s.repeat(cmd, f.watchFlags, func(ctx context.Context) error { return show(ctx, s, r, writePolicies) })
		},
	}
	c.ValidArgs = lifecycle.KindNames()
	f.controlFlags.flags(c)
	f.watchFlags.flags(c)
	return c
}

// writeWanted prints the goals of slots after a change. It prints no hosts, because their last
// reports are older than the change.
func writeWanted(w io.Writer, p control.Policies) error {
	if err := slotTable(p).Text(w); err != nil {
		return err
	}
	var names []string
	for _, slot := range p.Slots {
		names = append(names, string(slot.Slot))
	}
	_, err := fmt.Fprintf(w, "\nHosts follow within seconds: cascade policy status %s --watch\n", strings.Join(names, " "))
	return err
}

// writePolicies prints slots and hosts.
func writePolicies(w io.Writer, p control.Policies) error {
	t := hostTable("hosts")
	for _, slot := range p.Slots {
		// Slots that have always run the built-in policy are left out.
		if !slices.ContainsFunc(slot.Nodes, func(n control.PolicyNode) bool { return len(n.Modules) > 0 || n.Refused != "" }) {
			continue
		}
		for _, n := range ownRows(slot.Nodes) {
			t.Rows = append(t.Rows, hostRows(slot.Slot, n)...)
		}
	}
	if len(t.Rows) == 0 {
		return slotTable(p).Text(w)
	}
	return writeTables(w, slotTable(p), t)
}

// writeSlots prints slots, and the hosts that differ from most others.
func writeSlots(w io.Writer, p control.Policies) error {
	slots := slotTable(p)
	slots.Notes = append(slots.Notes, "Every host: cascade policy status.")
	tables := []report.Table{slots}
	t := hostTable("hosts that differ")
	for _, slot := range p.Slots {
		for _, n := range differing(ownRows(slot.Nodes)) {
			t.Rows = append(t.Rows, hostRows(slot.Slot, n)...)
		}
	}
	if len(t.Rows) > 0 {
		tables = append(tables, t)
	}
	fmt.Fprintln(w)
	return writeTables(w, tables...)
}

func hostTable(title string) report.Table {
	return report.Table{Title: title, Header: []string{"slot", "host", "generation", "phase", "calls", "faults", "compared", "differ", "worse", "reason"}, Left: 2}
}

// differing returns the hosts that run another generation than most, or that reject one. If two
// halves are equal, it returns the half without the first host.
func differing(nodes []control.PolicyNode) []control.PolicyNode {
	type decides struct {
		active, candidate lifecycle.Generation
		permille          int
		refuses           bool
	}
	of := func(n control.PolicyNode) decides {
		return decides{n.Active, n.Candidate, n.Permille, n.Refused != ""}
	}
	hosts, most := make(map[decides]int), decides{}
	for _, n := range nodes {
		hosts[of(n)]++
	}
	for _, n := range nodes {
		if hosts[of(n)] > hosts[most] {
			most = of(n)
		}
	}
	return slices.DeleteFunc(nodes, func(n control.PolicyNode) bool { return of(n) == most && !of(n).refuses })
}

// ownRows returns the hosts of a slot, each once. For replicas that share a host, it returns the
// first, with the name of the host and the number of replicas.
func ownRows(nodes []control.PolicyNode) (out []control.PolicyNode) {
	replicas := make(map[string]int)
	for _, n := range nodes {
		if replicas[n.Host]++; n.Host == "" || replicas[n.Host] == 1 {
			out = append(out, n)
		}
	}
	for i, n := range out {
		if n.Host != "" {
			out[i].Node = fmt.Sprintf("%s (%s)", n.Host, plural(replicas[n.Host], "replica"))
		}
	}
	return out
}

// hostRows returns the generations of a host, and the last one that ended
// there.
func hostRows(slot lifecycle.Kind, n control.PolicyNode) (rows [][]string) {
	row := func(cells ...string) { rows = append(rows, append([]string{string(slot), n.Node}, cells...)) }
	if n.Refused != "" {
		row("", "refuses", "", "", "", "", "", shorten(n.Refused))
	}
	if n.Active == 0 {
		row("0", "built in", "", "", "", "", "", "")
	}
	var last lifecycle.Generation
	for _, l := range n.Modules {
		if l.Phase.Ended() {
			last = max(last, l.Generation)
		}
	}
	for _, l := range n.Modules {
		if l.Phase.Ended() && l.Generation < last {
			continue
		}
		state := l.Phase.String()
		switch {
		case l.Generation == n.Candidate && n.Scope != "":
			state += " for " + n.Scope
		case l.Generation == n.Candidate:
			state += fmt.Sprintf(" %d ‰", n.Permille)
		}
		why := l.Why()
		if why == "" && l.Calls == 0 && (l.Phase == lifecycle.Shadow || l.Phase == lifecycle.Canary) {
			why = "not asked yet"
		}
		if l.Starved > 0 {
			why = strings.TrimPrefix(why+fmt.Sprintf("; the host was too busy for %s (starved)", plural(int(l.Starved), "call")), "; ")
		}
		row(fmt.Sprint(l.Generation), state, fmt.Sprint(l.Calls), fmt.Sprint(l.Faults), fmt.Sprint(l.Figures.Compared), fmt.Sprint(l.Figures.Differ), fmt.Sprint(l.Figures.Worse), shorten(why))
	}
	return rows
}

// slotTable returns a row per slot, with notes about problems.
func slotTable(p control.Policies) report.Table {
	t := report.Table{Title: "policies", Header: []string{"slot", "decides", "generation", "sha256", "hosts", "on trial", "goal", "hosts"}, Left: 2}
	for _, slot := range p.Slots {
		name, generation, digest := "built in", "0", ""
		var stable lifecycle.Generation
		if m := slot.Stable; m != nil {
			name, generation, digest, stable = m.Name+" "+m.Version, fmt.Sprint(m.Generation), m.SHA256.String()[:shownDigest], m.Generation
		}
		trial, goal, tried := "", "", ""
		var candidate lifecycle.Generation
		if c := slot.Candidate; c != nil {
			candidate = c.Generation
			trial, goal = fmt.Sprintf("%s %s, %d", c.Name, c.Version, c.Generation), trialGoal(c)
		}
		fresh, stables, candidates := 0, 0, 0
		for _, n := range slot.Nodes {
			late := n.ReportAge == nil || *n.ReportAge > policyslots.FreshFor.Seconds()
			switch {
			case n.Refused != "":
				t.Notes = append(t.Notes, fmt.Sprintf("%s rejects the module of %s: %s.", n.Node, slot.Slot, n.Refused))
			case late:
				t.Notes = append(t.Notes, fmt.Sprintf("%s has not reported %s recently.", n.Node, slot.Slot))
			}
			switch {
			case late:
			case n.Active == stable:
				fresh, stables = fresh+1, stables+1
			case n.Active == candidate:
				fresh, candidates = fresh+1, candidates+1
			default:
				fresh++
			}
			t.Notes = append(t.Notes, nodeNotes(slot.Slot, n, stable, candidate)...)
			for _, l := range n.Modules { // all hosts report the same modules
				if text := fmt.Sprintf("%s: generation %d decides, and %s.", slot.Slot, l.Generation, l.Reason); l.Phase == lifecycle.Active && l.Reason != "" && !slices.Contains(t.Notes, text) {
					t.Notes = append(t.Notes, text)
				}
			}
		}
		if candidate != 0 {
			tried = fmt.Sprintf("%d of %d", candidates, fresh)
		}
		t.Rows = append(t.Rows, []string{string(slot.Slot), name, generation, digest, fmt.Sprintf("%d of %d", stables, fresh), trial, goal, tried})
		earlier := max(0, len(slot.RolledBack)-shownEnds)
		if earlier > 0 {
			t.Notes = append(t.Notes, fmt.Sprintf("%s: %s rolled back earlier; --json lists them.", slot.Slot, plural(earlier, "generation")))
		}
		for _, e := range slot.RolledBack[earlier:] {
			t.Notes = append(t.Notes, fmt.Sprintf("%s: generation %d of %s was rolled back at %s by %s: %s.", slot.Slot, e.Generation, e.Name, e.At.Local().Format(time.DateTime), actorName(e.By), e.Reason))
		}
	}
	if !p.Enabled {
		t.Notes = append(t.Notes, "Modules are disabled: the fleet file has no policies.keys, or sets policies.native.")
	}
	return t
}

// trialGoal returns the goal of a candidate.
func trialGoal(c *control.PolicyCandidate) string {
	switch {
	case c.Permille != 0:
		return fmt.Sprintf("%s %d ‰", c.Goal, c.Permille)
	case c.Scope != "":
		return c.Goal.String() + ", first " + c.Scope
	}
	return c.Goal.String()
}

// nodeNotes returns what differs on a host: a generation that it rolled back, or one that it has
// not activated yet.
func nodeNotes(slot lifecycle.Kind, n control.PolicyNode, stable, candidate lifecycle.Generation) (notes []string) {
	for _, l := range n.Modules {
		if l.Phase == lifecycle.Rejected && (l.Generation == stable || l.Generation == candidate) {
			notes = append(notes, fmt.Sprintf("%s rolled back generation %d of %s: %s.", n.Node, l.Generation, slot, l.Reason))
		}
	}
	return notes
}
