package fleetview

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// shownChanges is how many of the latest plans are shown.
const shownChanges = 8

// WriteStatus prints all that a control plane says of its state, as tables.
func WriteStatus(w io.Writer, st control.Status) error {
	line := fmt.Sprintf("epoch %d, policy %s; proxies are shown epoch %d (%s)",
		st.Epoch, st.Policy, st.PublishedEpoch, st.Phase)
	if p := st.Planner; p.Shared {
		line += "\n" + plannerLine(p)
		for _, other := range st.Planes {
			line += "\n" + planeLine(other)
		}
	}
	if len(st.Plaintext) > 0 {
		line += "\nplain text allowed off loopback: " + strings.Join(st.Plaintext, ", ") + " (tls.plaintext)"
	}
	if _, err := fmt.Fprintf(w, "%s%s\n\n", faultLines(st.Faults), line); err != nil {
		return err
	}
	tables := make([]report.Table, 0, len(st.Models)+2)
	for _, m := range st.Models {
		tables = append(tables, modelTable(m))
	}
	tables = append(tables, nodeTable(st))
	if len(st.History) > 0 {
		tables = append(tables, historyTable(st.History))
	}
	return report.WriteTables(w, tables...)
}

// faultLines returns a line for each fault, or "". Faults that make requests or orders fail come first.
func faultLines(faults []control.Fault) string {
	var b strings.Builder
	sorted := slices.Clone(faults)
	slices.SortStableFunc(sorted, func(x, y control.Fault) int { return count(y.NotReady) - count(x.NotReady) })
	for _, f := range sorted {
		if f.NotReady {
			b.WriteString("NOT READY: ")
		}
		fmt.Fprintf(&b, "FAULT %s %s: %s%s\n", f.Kind, f.Object, f.Text, sinceText(f))
	}
	if b.Len() > 0 {
		b.WriteString("\n")
	}
	return b.String()
}

// NotReadyError returns an error for a fleet that is not ready; nil for one that is.
func NotReadyError(st control.Status) error {
	var errs []string
	for _, f := range st.Faults {
		if f.NotReady {
			errs = append(errs, f.Kind+" "+f.Object+": "+f.Text)
		}
	}
	if st.Verdict == control.Starting {
		errs = append(errs, "there is no plan yet")
	}
	if len(errs) == 0 {
		return nil
	}
	return errors.New("the fleet is not ready: " + strings.Join(errs, "; "))
}

// plannerLine names the control plane that leads.
func plannerLine(p control.Planner) string {
	switch {
	case p.Leads:
		return fmt.Sprintf("this control plane, %s, plans", p.Self)
	case p.Holder == "" && p.LastHolder != "":
		return fmt.Sprintf("this control plane, %s, follows; there is no leader, and %s was the last one, %.1f s ago",
			p.Self, p.LastHolder, p.Since)
	case p.Holder == "":
		return fmt.Sprintf("this control plane, %s, follows; there is no leader", p.Self)
	}
	return fmt.Sprintf("this control plane, %s, follows %s, heard of %.1f s ago", p.Self, p.Holder, p.Since)
}

// planeLine describes another control plane.
func planeLine(p control.Plane) string {
	role, file := "follows", "the same fleet file"
	if p.Leads {
		role = "plans"
	}
	if !p.SameFile {
		file = fmt.Sprintf("another fleet file, of %s", cli.Plural(p.Replicas, "replica"))
	}
	return fmt.Sprintf("control plane %s (http://%s) %s, has %s and %s; heard of %.1f s ago",
		p.Name, p.Admin, role, file, proxies(p.Nodes), p.Age)
}

// proxies returns a count of proxies.
func proxies(n int) string {
	if n == 1 {
		return "1 proxy"
	}
	return fmt.Sprintf("%d proxies", n)
}

// minEstimates is the number of requests from which on the error of their estimated lengths is shown: that of
// a first "hello", whose body is JSON for the most part, is 1000 % and says nothing.
const minEstimates = 100

// modelTable returns a model's stages and replicas.
func modelTable(m control.Model) report.Table {
	t := report.Table{
		Title: fmt.Sprintf("%s: epoch %d, %s", m.Name, m.Epoch, cmp.Or(m.Reason, "no reason is stored")),
		Header: []string{"stage", "lengths", "replica", "health", "weight", "running", "waiting", "held",
			"promised", "iteration", "proxies", "report", "transports"},
		Left: 4,
	}
	for _, st := range m.Stages {
		stage, lengths := st.Name, FormatRange(st)
		if len(st.Replicas) == 0 {
			t.Rows = append(t.Rows, append([]string{stage, lengths, "none"}, make([]string, 10)...))
		}
		for _, r := range st.Replicas {
			t.Rows = append(t.Rows, append([]string{stage, lengths}, replicaCells(r)...))
			stage, lengths = "", ""
		}
	}
	for _, r := range m.Unassigned {
		t.Rows = append(t.Rows, append([]string{cmp.Or(r.Role, "–"), ""}, replicaCells(r)...))
	}
	note := fmt.Sprintf("%s seen, %.2f/s now; %.2f bytes per token",
		cli.Plural(int(m.Seen), "request"), m.Rate, m.BytesPerToken)
	if m.EstimateError > 0 && m.Seen >= minEstimates {
		note += fmt.Sprintf(", estimates are off by %.1f %%", m.EstimateError*100)
	}
	t.Notes = append([]string{note + "."}, stageNotes(m.Stages)...)
	if pin := m.Pinned; pin != nil {
		t.Notes = append(t.Notes, fmt.Sprintf("Pinned to the plan of epoch %d by %s; "+
			"\"cascade plan pin --undo %s\" ends that.",
			pin.Epoch, actorName(pin.By), m.Name))
	}
	if m.Planner != "" {
		t.Notes = append(t.Notes, "Planner: "+m.Planner+".")
	}
	if m.Scaling != nil {
		t.Notes = append(t.Notes, describeScaling(*m.Scaling))
	}
	all := Replicas(m)
	if slices.ContainsFunc(all, needsAttention) {
		t.Notes = append(t.Notes, "Some transports are not ready, or not from all peers: see --json for the reasons.")
	}
	for _, r := range all {
		if note := describeEngine(r); note != "" {
			t.Notes = append(t.Notes, fmt.Sprintf("%s: %s.", r.ID, note))
		}
		if r.Note != "" {
			t.Notes = append(t.Notes, fmt.Sprintf("%s: %s.", r.ID, r.Note))
		}
		if len(r.Drain) > 0 {
			t.Notes = append(t.Notes, fmt.Sprintf("%s is drained by %s: %s.",
				r.ID, strings.Join(r.Drain, " and "), DescribeRemaining(r)))
		}
	}
	return t
}

// Replicas returns all replicas of a model.
func Replicas(m control.Model) []control.Replica {
	var out []control.Replica
	for _, st := range m.Stages {
		out = append(out, st.Replicas...)
	}
	return append(out, m.Unassigned...)
}

func replicaCells(r control.Replica) []string {
	iteration, proxied, report := "–", "–", "never"
	if r.Iteration > 0 {
		iteration = fmt.Sprintf("%.1f ms", r.Iteration*1e3)
	}
	if r.ProxyRequests != nil {
		proxied = fmt.Sprint(*r.ProxyRequests)
	}
	if r.ReportAge != nil {
		report = fmt.Sprintf("%.1f s", *r.ReportAge)
		if !r.Connected {
			report += ", cut"
		}
	}
	return []string{string(r.ID), r.Health, fmt.Sprint(r.Weight), fmt.Sprint(r.Running), fmt.Sprint(r.Waiting),
		fmt.Sprint(int64(r.Held)), fmt.Sprint(int64(r.Promised)), iteration, proxied, report, transports(r.Transports)}
}

// describeEngine returns what a replica's engine says of itself, "" for nothing.
func describeEngine(r control.Replica) string {
	var out []string
	add := func(given bool, format string, args ...any) {
		if given {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	e := r.Engine
	add(e.Version != "", "engine %s", e.Version)
	add(e.Context > 0, "context %d", e.Context)
	if l := r.EngineLoad; l != nil {
		add(l.Capacity > 0, "KV %d of %d", l.KVUsed, l.Capacity)
		add(l.Waiting > 0, "%d waiting", l.Waiting)
		add(l.Preemptions > 0, "%d preempted", l.Preemptions)
	}
	add(e.BlockTokens > 0, "blocks of %d", e.BlockTokens)
	add(e.Connector != "" && e.Connector != "unknown", "KV connector: %s", e.Connector)
	add(e.TokensPerChunk > 1, "up to %d tokens a chunk", e.TokensPerChunk)
	add(e.DraftTokens > 0, "speculates on %d tokens", e.DraftTokens)
	add(e.PromptDetails == "no", "reports no cached tokens")
	add(e.RefusesTokenIDs != "", "refuses return_token_ids on %s: requests there cannot move", e.RefusesTokenIDs)
	switch p := r.KnownPrefixes; p.Source {
	case "events":
		add(true, "%s known to be cached, by its KV events", cli.Plural(int(p.Blocks), "block"))
	case "own":
		add(true, "%s known to be cached, by what it was sent", cli.Plural(int(p.Blocks), "block"))
	case "none":
		add(true, "no block known to be cached")
	}
	return strings.Join(out, ", ")
}

// maxReasonLength is how many characters of a reason fit into a table.
const maxReasonLength = 60

// transports lists transports, best first, with the state of those that do not work and the number
// of peers for which one failed recently. --json shows the reasons.
func transports(list []control.Transport) string {
	held := map[string]int{} // number of peers, by transport
	var names []string
	states := map[string]string{}
	for _, t := range list {
		switch {
		case t.State == loadreport.RouteUnsuited || t.State == loadreport.RouteUnknown:
		case t.Peer == "":
			names, states[t.Name] = append(names, t.Name), t.State
		case t.State != loadreport.RouteReady:
			held[t.Name]++
		}
	}
	var out []string
	for _, name := range names {
		text := name
		if states[name] != loadreport.RouteReady {
			text += " " + states[name]
		}
		if n := held[name]; n > 0 {
			text += fmt.Sprintf(" (%d held)", n)
		}
		out = append(out, text)
	}
	if len(out) == 0 {
		return "-"
	}
	return strings.Join(out, ", ")
}

// needsAttention reports whether a transport of a replica does not work as it
// should.
func needsAttention(r control.Replica) bool {
	return slices.ContainsFunc(r.Transports, func(t control.Transport) bool {
		return t.State == loadreport.RouteBroken || t.State == loadreport.RouteHeld
	})
}

// shorten returns a reason as one short line.
func shorten(s string) string { return shortenTo(s, maxReasonLength) }

// shortenTo returns a text as one line of at most n characters.
func shortenTo(s string, n int) string {
	if r := []rune(strings.Join(strings.Fields(s), " ")); len(r) > n {
		return string(r[:n-1]) + "…"
	} else {
		return string(r)
	}
}

// FormatRange returns a stage's range.
func FormatRange(st control.Stage) string { return formatRange(st.Low, st.High) }

func formatRange(low policies.Tokens, high *policies.Tokens) string {
	if high == nil {
		return policies.LengthRange(low, policies.Unbounded)
	}
	return policies.LengthRange(low, *high)
}

// nodeTable lists the proxies and their ACKs.
func nodeTable(st control.Status) report.Table {
	t := report.Table{Title: "proxies", Header: []string{"node", "state", "acknowledged", "epoch", "NACKs"}, Left: 3}
	for _, n := range st.Nodes {
		t.Rows = append(t.Rows, []string{n.ID, n.State, acked(n), epochOf(n), fmt.Sprint(n.NACKs)})
		if n.LastError != "" {
			when := ""
			if !n.LastErrorAt.IsZero() {
				when = st.Time.Sub(n.LastErrorAt).Round(time.Second).String() + " ago, "
			}
			t.Notes = append(t.Notes, fmt.Sprintf("%s refused a response: %s%s", n.ID, when, n.LastError))
		}
	}
	if slices.ContainsFunc(st.Nodes, func(n control.Node) bool { return n.State == "unlisted" }) {
		t.Notes = append(t.Notes, "No roll-out waits for an unlisted proxy: "+
			"add its node id to proxy.nodes if it is the fleet's.")
	}
	t.Notes = append(t.Notes, nodeReasons(st)...)
	for _, r := range st.Refused {
		t.Notes = append(t.Notes, fmt.Sprintf("Plan %d was rolled back, because %s refused %s: %s",
			r.Epoch, r.Node, r.Name, cmp.Or(r.Text, "no reason was given")))
	}
	if len(st.Nodes) == 0 {
		none := "No proxy has connected yet."
		if st.Planner.Shared {
			none = "No proxy is connected to this control plane or to another one that has left a note."
		}
		t.Notes = []string{none}
	}
	return t
}

// nodeReasons returns why the newest plan is not delivered: one note per group, and one per proxy
// with a different reason.
func nodeReasons(st control.Status) (notes []string) {
	shared := make(map[string]string)
	for _, g := range st.Groups {
		if shared[g.Name] = g.Reason; g.Reason != "" && g.Nodes > 0 {
			notes = append(notes, fmt.Sprintf("Plan %d, %d of the proxies: %s.", g.Epoch, g.Nodes, g.Reason))
		}
	}
	for _, n := range st.Nodes {
		if n.Connected && n.Reason != "" && n.Reason != shared[n.Group] {
			notes = append(notes, fmt.Sprintf("%s: plan %s: %s", n.ID, epochOf(n), n.Reason))
		}
	}
	return notes
}

// epochOf names the newest plan whose routes a node has, as far as this control plane knows.
func epochOf(n control.Node) string {
	if n.Epoch == 0 {
		return "unknown"
	}
	return fmt.Sprint(n.Epoch)
}

// acked lists the versions that a node has acknowledged, by type, and the versions that it has not
// answered.
func acked(n control.Node) string {
	var kinds []string
	for kind, t := range n.Types {
		if t.Acked > 0 || t.Pending > 0 {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	for i, kind := range kinds {
		t := n.Types[kind]
		text := fmt.Sprintf("%s %d", kind, t.Acked)
		if t.Pending > 0 {
			text += fmt.Sprintf(" (+%d pending)", t.Pending)
		}
		kinds[i] = text
	}
	return strings.Join(kinds, ", ")
}

// historyTable returns the latest plans, newest first.
func historyTable(history []control.Change) report.Table {
	t := report.Table{Title: "latest plans", Header: []string{"time", "model", "epoch", "why and what"}, Left: 4}
	for i := len(history) - 1; i >= max(0, len(history)-shownChanges); i-- {
		c := history[i]
		when := c.Time.Local().Format(time.TimeOnly)
		t.Rows = append(t.Rows, []string{when, c.Model, fmt.Sprint(c.Epoch), DescribeChange(c)})
	}
	return t
}
