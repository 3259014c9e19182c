package fleetview

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Legend explains the words of the status.
const Legend = `health      healthy: takes requests; unhealthy: takes none; draining: takes none, and what runs there
            ends or moves
running     requests that generate tokens
waiting     requests that the replica has accepted, and that have no token yet
held        KV tokens in use
promised    length of the requests that are accepted and not begun
KV          share of the KV cache that is in use
token       mean time between two tokens of a request (iteration)
weight      share of a stage's requests that proxies send to the replica; 100 is neutral
proxies     requests that all proxies have in progress at the replica
transports  how KV blocks may come to the replica, best first; in brackets the peers from which that failed recently
epoch       number of a plan; proxies follow the plan whose epoch they have
roll-out    add: proxies get the new endpoints; flip: they get the routes; watch: the first group is watched;
            retire: old endpoints leave; idle: all proxies have the plan
proxy       current: it has the newest routes; following: it is getting them; refuses: it refuses what others of its
            group run; late: the roll-out does not wait for it; unlisted: proxy.nodes does not have it;
            gone: not connected
`

// maxNoteLength is how many characters of a note fit into a line of the summary.
const maxNoteLength = 50

// WriteSummary prints a control plane's state: its faults, or OK; then a line for each stage and replica, and for each
// proxy that is not current.
func WriteSummary(w io.Writer, st control.Status) error {
	var b strings.Builder
	if b.WriteString(faultLines(st.Faults)); len(st.Faults) == 0 {
		b.WriteString(readyLine(st) + "\n\n")
	}
	for _, m := range st.Models {
		writeModel(&b, m)
	}
	b.WriteString(proxyLines(st))
	if p := st.Planner; p.Shared {
		b.WriteString(plannerLine(p) + "\n")
		for _, other := range st.Planes {
			b.WriteString(planeLine(other) + "\n")
		}
	}
	for _, s := range st.Policies {
		if s.Candidate != nil {
			fmt.Fprintf(&b, "policy %s: generation %d of %s is on trial, and decides on %d of %d hosts\n",
				s.Slot, s.Candidate.Generation, s.Candidate.Name, s.OnCandidate, s.Nodes)
		} else if s.Stable != nil {
			fmt.Fprintf(&b, "policy %s: generation %d of %s decides on %d of %d hosts\n",
				s.Slot, s.Stable.Generation, s.Stable.Name, s.OnStable, s.Nodes)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// readyLine returns the first line for a fleet without faults.
func readyLine(st control.Status) string {
	healthy, all := 0, 0
	for _, m := range st.Models {
		for _, r := range Replicas(m) {
			if r.Role == "" { // prefill replicas take no requests
				all++
				healthy += count(r.Health == resources.Healthy.String())
			}
		}
	}
	if st.Verdict == control.Starting {
		return "STARTING: there is no plan yet"
	}
	verb := "take"
	if all == 1 {
		verb = "takes"
	}
	return fmt.Sprintf("OK: %d of %s %s requests", healthy, cli.Plural(all, "replica"), verb)
}

// count returns 1 for true and 0 for false.
func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// writeModel prints a model: a headline, a line for each stage, and one for each replica.
func writeModel(b *strings.Builder, m control.Model) {
	fmt.Fprintf(b, "%s: %.1f requests/s", m.Name, m.Rate)
	if m.RefusedShare > 0 {
		fmt.Fprintf(b, ", %.0f %% of them refused", 100*m.RefusedShare)
	}
	if m.Queue > 0 {
		fmt.Fprintf(b, ", %.1f s to the first token", m.Queue)
	}
	fmt.Fprintf(b, "; plan %d: %s", m.Epoch, cmp.Or(m.Reason, "no reason is stored"))
	if m.Pinned != nil {
		fmt.Fprintf(b, "; pinned to plan %d by %s", m.Pinned.Epoch, actorName(m.Pinned.By))
	}
	if s := m.Scaling; s != nil {
		fmt.Fprintf(b, "; %s wanted, %d present", cli.Plural(s.Desired, "replica"), s.Present)
	}
	b.WriteString("\n")
	var rows strings.Builder
	t := tabwriter.NewWriter(&rows, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "STAGE\tLENGTHS\tREPLICA\tHEALTH\tRUNNING\tWAITING\tKV\tTOKEN\tNOTE\n")
	for _, st := range m.Stages {
		healthy, running, waiting := 0, 0, 0
		for _, r := range st.Replicas {
			healthy += count(r.Health == resources.Healthy.String())
			running, waiting = running+r.Running, waiting+r.Waiting
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d healthy\t%d\t%d\t\t\t\n",
			st.Name, FormatRange(st), len(st.Replicas), healthy, running, waiting)
		writeReplicas(t, "", st.Replicas)
	}
	writeReplicas(t, "–", m.Unassigned)
	t.Flush() // into memory
	for line := range strings.Lines(rows.String()) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	b.WriteString("\n")
}

// writeReplicas prints a line for each replica.
func writeReplicas(t io.Writer, stage string, list []control.Replica) {
	for _, r := range list {
		kv, token := "–", "–"
		if e := r.EngineLoad; e != nil && e.Capacity > 0 {
			kv = fmt.Sprintf("%.0f %%", 100*min(1, float64(e.KVUsed)/float64(e.Capacity)))
		}
		if r.Iteration > 0 {
			token = fmt.Sprintf("%.1f ms", r.Iteration*1e3)
		}
		name := stage
		if r.Role != "" {
			name = r.Role
		}
		fmt.Fprintf(t, "%s\t\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n",
			name, r.ID, r.Health, r.Running, r.Waiting, kv, token, replicaNote(r))
	}
}

// replicaNote returns what an operator must know of a replica in a few words, or "".
func replicaNote(r control.Replica) string {
	text := r.HealthReason
	if len(r.Drain) > 0 {
		text = "drained by " + strings.Join(r.Drain, " and ") + ": " + DescribeRemaining(r)
	}
	text = cmp.Or(text, r.Note)
	if text == "" && needsAttention(r) {
		text = "transports: " + transports(r.Transports)
	}
	return shortenTo(text, maxNoteLength)
}

// proxyLines counts the proxies by their states, and has a line for each that is not current.
func proxyLines(st control.Status) string {
	if len(st.Nodes) == 0 {
		return "proxies: none has connected\n"
	}
	states := make(map[string]int)
	var order, lines []string
	for _, n := range st.Nodes {
		state := n.State
		if states[state]++; states[state] == 1 {
			order = append(order, state)
		}
		if state != "current" {
			why := cmp.Or(n.Reason, n.LastError)
			if why == "" && state == "unlisted" {
				why = "add it to proxy.nodes if it is the fleet's: no roll-out waits for it"
			}
			lines = append(lines, strings.TrimSuffix(fmt.Sprintf("  %s: %s, epoch %s; %s", n.ID, state, epochOf(n), why), "; "))
		}
	}
	slices.Sort(order)
	for i, state := range order {
		order[i] = fmt.Sprintf("%d %s", states[state], state)
	}
	head := "proxies: " + strings.Join(order, ", ")
	if st.PublishedEpoch != st.Epoch || st.Phase != "idle" && st.Phase != "" {
		head += fmt.Sprintf("; epoch %d is rolled out (%s)", max(st.Epoch, policies.Epoch(1)), cmp.Or(st.Phase, "idle"))
	}
	return strings.Join(append([]string{head}, lines...), "\n") + "\n"
}

// sinceText returns how long a fault has lasted, "" if that is not known.
func sinceText(f control.Fault) string {
	if f.Seconds <= 0 {
		return ""
	}
	return fmt.Sprintf(" (for %v)", time.Duration(f.Seconds*float64(time.Second)).Round(time.Second))
}
