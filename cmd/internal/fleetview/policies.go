package fleetview

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

const (
	// ShownDigest is how many digits of a module's hash are shown.
	ShownDigest = 12
	// shownEnds is how many of the generations that were rolled back are shown.
	shownEnds = 3
)

// WriteGoals prints the goals of slots after a change. It prints no hosts, because their last
// reports are older than the change.
func WriteGoals(w io.Writer, p control.Policies) error {
	if err := slotTable(p).Text(w); err != nil {
		return err
	}
	for _, warning := range p.Warnings {
		if _, err := fmt.Fprintf(w, "warning: %s\n", warning); err != nil {
			return err
		}
	}
	var names []string
	for _, slot := range p.Slots {
		names = append(names, string(slot.Slot))
	}
	_, err := fmt.Fprintf(w, "\nHosts follow within seconds: cascade policy status %s --watch\n", strings.Join(names, " "))
	return err
}

// WritePolicies prints slots and hosts.
func WritePolicies(w io.Writer, p control.Policies) error {
	t := hostTable("hosts")
	for _, slot := range p.Slots {
		// Slots that have always run the built-in policy are left out.
		changed := func(n control.PolicyNode) bool { return len(n.Modules) > 0 || n.Refused != "" }
		if !slices.ContainsFunc(slot.Nodes, changed) {
			continue
		}
		for _, n := range ownRows(slot.Nodes) {
			t.Rows = append(t.Rows, hostRows(slot.Slot, n)...)
		}
	}
	slots := slotTable(p)
	switch {
	case len(slots.Rows) == 0: // modules are disabled
		_, err := fmt.Fprintln(w, strings.Join(slots.Notes, "\n"))
		return err
	case len(t.Rows) == 0:
		return slots.Text(w)
	}
	return report.WriteTables(w, slots, t)
}

// WriteSlots prints slots, and the hosts that differ from most others.
func WriteSlots(w io.Writer, p control.Policies) error {
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
	return report.WriteTables(w, tables...)
}

func hostTable(title string) report.Table {
	return report.Table{
		Title: title, Left: 2,
		Header: []string{
			"slot", "host", "generation", "phase", "calls", "faults", "compared", "differ", "worse", "reason",
		},
	}
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
			out[i].Node = fmt.Sprintf("%s (%s)", n.Host, cli.Plural(replicas[n.Host], "replica"))
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
		if l.Phase == lifecycle.RolledBack {
			state = "rolled back"
		}
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
			starved := fmt.Sprintf("; the host was too busy for %s (starved)", cli.Plural(int(l.Starved), "call"))
			why = strings.TrimPrefix(why+starved, "; ")
		}
		row(fmt.Sprint(l.Generation), state, fmt.Sprint(l.Calls), fmt.Sprint(l.Faults),
			fmt.Sprint(l.Figures.Compared), fmt.Sprint(l.Figures.Differ), fmt.Sprint(l.Figures.Worse), shorten(why))
	}
	return rows
}

// slotTable returns a row per slot, with notes about problems.
func slotTable(p control.Policies) report.Table {
	t := report.Table{
		Title: "policies", Left: 2,
		Header: []string{"slot", "decides", "generation", "sha256", "hosts", "on trial", "goal", "hosts"},
	}
	for _, slot := range p.Slots {
		name, generation, digest := "built in", "0", ""
		var stable lifecycle.Generation
		if m := slot.Stable; m != nil {
			name, generation = m.Name+" "+m.Version, fmt.Sprint(m.Generation)
			digest, stable = m.SHA256.String()[:ShownDigest], m.Generation
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
				text := fmt.Sprintf("%s: generation %d decides, and %s.", slot.Slot, l.Generation, l.Reason)
				if l.Phase == lifecycle.Active && l.Reason != "" && !slices.Contains(t.Notes, text) {
					t.Notes = append(t.Notes, text)
				}
			}
		}
		if candidate != 0 {
			tried = fmt.Sprintf("%d of %d", candidates, fresh)
		}
		t.Rows = append(t.Rows, []string{
			string(slot.Slot), name, generation, digest, fmt.Sprintf("%d of %d", stables, fresh), trial, goal, tried,
		})
		earlier := max(0, len(slot.RolledBack)-shownEnds)
		if earlier > 0 {
			t.Notes = append(t.Notes, fmt.Sprintf("%s: %s rolled back earlier; --json lists them.",
				slot.Slot, cli.Plural(earlier, "generation")))
		}
		for _, e := range slot.RolledBack[earlier:] {
			t.Notes = append(t.Notes, fmt.Sprintf("%s: generation %d of %s was rolled back at %s by %s: %s.",
				slot.Slot, e.Generation, e.Name, e.At.Local().Format(time.DateTime), actorName(e.By), e.Reason))
		}
	}
	if !p.Enabled {
		t.Notes = append(t.Notes, "Modules are disabled: the fleet file has no policies.keys, or \"cascade up\" runs with --native.")
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
