package control

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/internal/nodeauth"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Fault is something that does not work, as this control plane sees it. GET /status lists
// all faults, and the metric cascade_fault has one sample for each.
type Fault struct {
	// Kind is one of the constants below, and Object what is concerned: an operation, a
	// control plane, a model or a replica.
	Kind   string `json:"kind"`
	Object string `json:"object"`
	Text   string `json:"text"` // what is wrong, and what to do
	// Seconds is how long it has lasted; absent: unknown.
	Seconds float64 `json:"seconds,omitempty"`
	// NotReady says that requests or operators' orders fail because of it: /readyz then
	// answers 503, and "cascade status" exits with 1.
	NotReady bool `json:"not_ready,omitempty"`
	// Removes is what the fleet file of a FaultRemoval removes, as "2 of the 3 replicas of m (r1, r2)";
	// empty for the other kinds.
	Removes string `json:"removes,omitempty"`
}

// The kinds of faults.
const (
	FaultStore       = "store"              // an operation of the plan store fails
	FaultLeader      = "no_leader"          // no control plane plans
	FaultName        = "name"               // another control plane has the name of this one
	FaultPublish     = "publish"            // the newest state is not published
	FaultPlane       = "control_plane"      // another control plane writes no notes
	FaultFile        = "fleet_file"         // a fleet file is refused, here ("refused") or by another control plane
	FaultFileDiffers = "fleet_file_differs" // another control plane has another fleet file in force
	FaultRemoval     = "removal"            // a fleet file is not applied until an operator confirms what it removes
	FaultModel       = "model"              // no replica of it takes requests
	FaultOverload    = "overload"           // clients of a model are refused, or its requests queue up
	FaultReplica     = "replica"            // a replica is unhealthy, or is drained and its migrator does not report
	FaultRollout     = "rollout"            // a plan is stopped or rolled back ("plan"), or a proxy does not have what it was sent
	FaultClients     = "refused_clients"    // clients were refused a moment ago, because of their "certificates" or of "limits"
	FaultPolicy      = "policy"             // hosts refuse what a policy slot should run, or have rejected it
	FaultAudit       = "audit"              // the audit log lacks records ("file")
	// The kinds of loadreport.Problem are kinds of faults, too: descriptors, memory, certificate, capacity. Their
	// object is a daemon, such as "migrator r0".
)

// fleetFaults lists the faults of a fleet, the most serious first.
func fleetFaults(s *fleet.Snapshot, stores []fleet.StoreFault, now time.Time) (out []Fault) {
	if s != nil {
		out = append(out, modelFaults(s, now)...)
	}
	for _, f := range stores {
		out = append(out, Fault{
			Kind: FaultStore, Object: string(f.Operation), Text: f.Consequence() + ": " + f.Err.Error(),
			Seconds: now.Sub(f.Since).Seconds(), NotReady: !f.IsMinor(),
		})
	}
	if s == nil {
		return out
	}
	if l := s.Leadership; l.NameTaken {
		out = append(out, Fault{Kind: FaultName, Object: l.Self, Text: "another control plane of the store has this name: give each a name of its own, with control.name or --name"})
	} else if l.Shared && l.Holder == "" && l.LastHolder != "" {
		out = append(out, Fault{
			Kind: FaultLeader, Object: l.LastHolder, Seconds: now.Sub(l.Since).Seconds(),
			Text: fmt.Sprintf("no control plane leads; the last one, %s, did not renew its lease: plans do not change until one can write the store", l.LastHolder),
		})
	}
	if h := s.Held; h != nil {
		text := "the fleet file is not applied, because it removes "
		if h.AtStart {
			text = "this control plane has started and serves nothing, because compared with the stored plan its fleet file removes "
		}
		out = append(out, Fault{
			Kind: FaultRemoval, Object: h.Digest, Seconds: now.Sub(h.Since).Seconds(), NotReady: h.AtStart, Removes: h.Text,
			Text: text + h.Text + "; if that is meant, run \"cascade config check --confirm\", else mend the file",
		})
	}
	for _, m := range s.Models {
		for _, r := range m.Replicas {
			out = append(out, problemFaults("migrator "+string(r.ID), r.Problems)...)
			if r.Faulty {
				since := r.HealthSince
				if r.Health == resources.Draining && r.Reported.After(since) {
					since = r.Reported
				}
				out = append(out, Fault{Kind: FaultReplica, Object: string(r.ID), Text: r.HealthReason, Seconds: now.Sub(since).Seconds()})
			}
		}
	}
	return out
}

// problemFaults lists what a daemon lacks.
func problemFaults(daemon string, problems []loadreport.Problem) (out []Fault) {
	for _, p := range problems {
		out = append(out, Fault{Kind: p.Kind, Object: daemon, Text: p.Text})
	}
	return out
}

// policyFaults lists the policy slots whose module some hosts refuse, or have rejected.
func policyFaults(slots []PolicySummary) (out []Fault) {
	for _, s := range slots {
		var texts []string
		for _, host := range s.Hosts {
			if host.Refused != "" && len(texts) < shownReplicas {
				texts = append(texts, host.Node+": "+host.Refused)
			}
		}
		if s.Rejected != "" {
			out = append(out, Fault{Kind: FaultPolicy, Object: string(s.Slot), Text: cleantext.Truncate(fmt.Sprintf(
				"hosts have rejected %s; push another one, or end it with \"cascade policy rollback %s\"", s.Rejected, s.Slot), maxFaultText)})
		} else if s.Refusing > 0 {
			out = append(out, Fault{Kind: FaultPolicy, Object: string(s.Slot), Text: cleantext.Truncate(fmt.Sprintf(
				"%d of %d hosts refuse the module that they should run, and keep the one before: %s", s.Refusing, s.Nodes, strings.Join(texts, "; ")), maxFaultText)})
		}
	}
	return out
}

// refusalSettles is how long after a proxy's refusal it may still have accepted a newer version.
const refusalSettles = 10 * time.Second

// isPlanRefusalPresent reports whether a plan that was rolled back is still a fault: until the proxies that refused it
// have left or connected anew, for refusalShown at least and planRefusalShown at most.
func isPlanRefusalPresent(p publish.Status, r publish.Refusal, now time.Time) bool {
	switch since := now.Sub(r.At); {
	case since < refusalShown:
		return true
	case since >= planRefusalShown:
		return false
	}
	return slices.ContainsFunc(p.Nodes, func(n publish.Node) bool {
		return slices.Contains(r.Refusers, n.ID) && n.Connected && n.Since.Before(r.At)
	})
}

// rolloutFaults lists the plan that goes no further because proxies refuse it, and the proxies that
// do not have what the others of their group have.
func rolloutFaults(p publish.Status, now time.Time) (out []Fault) {
	switch {
	case p.Blocked:
		out = append(out, Fault{Kind: FaultRollout, Object: "plan", Text: "the newest plan is not rolled out: " + p.Err.Error()})
	case p.Err == nil && len(p.Refused) > 0 && isPlanRefusalPresent(p, p.Refused[len(p.Refused)-1], now):
		r := p.Refused[len(p.Refused)-1]
		out = append(out, Fault{Kind: FaultRollout, Object: "plan", Seconds: now.Sub(r.At).Seconds(), Text: cleantext.Truncate(fmt.Sprintf(
			"a plan was rolled back, because the proxy %s refused %s: %s", r.Node, r.Name, r.Text), maxFaultText)})
	case p.Err != nil:
		out = append(out, Fault{Kind: FaultPublish, Object: "resources", Text: "the newest state is not published: " + p.Err.Error()})
	}
	serves := func(n publish.Node) bool { return n.Connected && !n.Unlisted && !n.Observer && !n.Unrouted }
	noneServes := !slices.ContainsFunc(p.Nodes, serves)
	for _, n := range p.Nodes {
		since := now.Sub(n.LastErrorAt)
		refuses := n.Refusing || !n.Current && n.LastError != "" && since < refusalSettles
		if n.Connected && !n.Unlisted && !n.Observer && (refuses || n.Fenced || n.Unrouted) {
			f := Fault{Kind: FaultRollout, Object: n.ID, Text: "the proxy does not have what it was sent: " + cmp.Or(n.Reason, n.LastError)}
			if n.Unrouted {
				f.Text, f.Seconds, f.NotReady = "the proxy has accepted no configuration, and serves no request: correct what it refuses, or upgrade it: "+n.LastError, since.Seconds(), noneServes
			} else if refuses {
				f.Text, f.Seconds = "the proxy refuses what it is sent, and keeps its last good version: "+n.LastError, since.Seconds()
			}
			out = append(out, f)
		}
	}
	return out
}

// overloadText describes the overload of a model, and what to do.
func overloadText(m fleet.ModelState) string {
	text := fmt.Sprintf("%.0f %% of its %.1f requests/s are refused with 429", 100*m.Demand.RefusedShare, m.Demand.Rate)
	if m.Demand.Queue > 0 {
		text += fmt.Sprintf(", a request waits %.1f s for its first token", m.Demand.Queue.Seconds())
	}
	if more := m.Scaling.Desired - m.Scaling.Present; more > 0 {
		return text + fmt.Sprintf(": add %d replicas to the %d, or send less", more, m.Scaling.Present)
	}
	return text + ": add replicas, or send less"
}

// modelFaults lists the models without a replica that takes requests, and those that are overloaded:
// by what was refused and how long requests wait, not by load, which admission keeps high on purpose.
func modelFaults(s *fleet.Snapshot, now time.Time) (out []Fault) {
	for _, m := range s.Models {
		if m.Demand.Overloaded {
			out = append(out, Fault{Kind: FaultOverload, Object: m.Name, Text: overloadText(m)})
		}
		var states []string
		var since time.Time
		all := slices.DeleteFunc(slices.Clone(m.Replicas), func(r fleet.ReplicaState) bool { return r.Prefill }) // they take no requests
		for _, r := range all {
			if r.Health == resources.Healthy {
				states = nil
				break
			}
			if len(states) < shownReplicas {
				states = append(states, fmt.Sprintf("%s is %s", r.ID, r.Health))
			}
			if r.HealthSince.After(since) {
				since = r.HealthSince
			}
		}
		if len(states) == 0 {
			continue
		}
		if more := len(all) - len(states); more > 0 {
			states = append(states, fmt.Sprintf("and %d more", more))
		}
		out = append(out, Fault{
			Kind: FaultModel, Object: m.Name, Seconds: now.Sub(since).Seconds(), NotReady: true,
			Text: "no replica takes requests: " + strings.Join(states, ", "),
		})
	}
	return out
}

const (
	// refusalShown is how long a refused client is shown: longer than the pause between two attempts of the fleet's own
	// clients (client.DefaultBackoffMax and gRPC's jitter), and gone within 10 s of the repair, with the 2 s after which
	// they have read a new certificate (certs.Interval).
	refusalShown = 7 * time.Second
	// planRefusalShown is how long a plan that was rolled back is shown at most: at a scrape every 30 s, one sees it.
	planRefusalShown = 35 * time.Second
	// maxFaultText bounds a text that clients can influence, in bytes.
	maxFaultText = 512
)

// shownReplicas is how many replicas a fault names.
const shownReplicas = 8

// faults lists the present faults.
func (c *Control) faults(s *fleet.Snapshot, published publish.Status, slots []PolicySummary, now time.Time) []Fault {
	out := fleetFaults(s, c.fleet.StoreFaults(), now)
	out = append(out, c.names.faults()...)
	out = append(out, c.planes.faults(now)...)
	out = append(out, rolloutFaults(published, now)...)
	if c.cfg.Problems != nil {
		out = append(out, problemFaults("control "+c.cfg.Name, c.cfg.Problems())...)
	}
	out = append(out, policyFaults(slots)...)
	out = append(out, c.refusedClients(now)...)
	out = append(out, c.auditFault()...)
	for _, n := range published.Nodes {
		out = append(out, problemFaults("proxy "+n.ID, n.Problems)...)
	}
	return out
}

// refusedClients lists why clients were refused a moment ago: the last refusal of each kind.
func (c *Control) refusedClients(now time.Time) (out []Fault) {
	note := func(object, text string, at time.Time, all uint64, client string, err error) {
		if now.Sub(at) < refusalShown {
			text = fmt.Sprintf("%s; %d since the start, the last one %.0f s ago: %s: %v", text, all, now.Sub(at).Seconds(), client, err)
			out = append(out, Fault{Kind: FaultClients, Object: object, Text: cleantext.Truncate(text, maxFaultText)})
		}
	}
	if c.auth != nil {
		if r := c.auth.LastRefusal(); r != nil {
			text := "clients are refused, because their certificates do not match"
			if errors.Is(r.Err, nodeauth.ErrPlainText) {
				text = "clients are refused, because they have no certificate"
			}
			note("certificates", text, r.At, c.auth.Refused(), r.Client, r.Err)
		}
	}
	if r := c.xds.LastRefusal(); r != nil {
		note("limits", "xDS streams are refused, because of a limit of control.limits or an invalid request", r.At, c.xds.Refused(), r.Client, r.Err)
	}
	return out
}

// notReady returns why this control plane is not ready, one reason a line; "" when it is.
func (c *Control) notReady() string {
	var lines []string
	if !c.Ready() {
		lines = append(lines, "no plan published yet")
	}
	for _, f := range c.observe().status.Faults {
		if f.NotReady {
			lines = append(lines, f.Kind+" "+f.Object+": "+f.Text)
		}
	}
	return strings.Join(lines, "\n")
}
