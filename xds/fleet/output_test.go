package fleet

import (
	"fmt"
	"strings"

	"github.com/cascadeinfer/cascade/internal/testkit/plantest"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// why returns a reason without its figures, which the partitioner's tests check.
func why(reason string) string {
	reason, _, _ = strings.Cut(reason, ": predicted gain")
	return reason
}

// prefix returns the prefix of what is printed of a model; none for the first one.
func prefix(model string) string {
	if model == "m" {
		return ""
	}
	return model + ": "
}

// routing prints what proxies see, with the endpoints in the order of the list.
func routing(s *Snapshot) string {
	var b strings.Builder
	for i, m := range s.Models {
		if i > 0 {
			b.WriteString("; " + m.Name + ":")
		}
		for _, r := range m.Replicas {
			fmt.Fprintf(&b, " %s:%d", r.ID, r.Weight)
			if r.Health != resources.Healthy {
				b.WriteString("/" + r.Health.String())
			}
		}
		if r := m.BytesPerToken; r != length.DefaultRatio {
			fmt.Fprintf(&b, " %.2f bytes/token", r.Float())
		}
	}
	return b.String()
}

func formatSlots(list []policyslots.Slot) string {
	var out []string
	for _, s := range list {
		text := fmt.Sprintf("%s %d", s.Kind, s.Stable.Generation)
		if s.Previous != nil {
			text += fmt.Sprintf(" after %d", s.Previous.Generation)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// object prints the stored object.
func (p *player) object() {
	o := p.stored.Object
	fmt.Fprintf(&p.out, "epoch %d, drained %v, slots [%s]\n", o.Epoch, o.Drained, formatSlots(o.Slots))
	for _, plan := range o.Plans {
		fmt.Fprintf(&p.out, "%s: epoch %d: %s\n", plan.Model, plan.Epoch, plantest.Format(plan))
	}
}

func sum(list []float64) (total float64) {
	for _, x := range list {
		total += x
	}
	return total
}

// resources builds and proves what the proxies are sent.
func (p *player) resources() {
	set, err := resources.Build(p.state.Snapshot(p.now).View(resources.Settings{}))
	if err == nil {
		err = resources.Prove(set)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	for _, typ := range set.Types() {
		names := resources.ChangedNames(p.set, set, typ)
		if len(p.set.Types()) > 0 && len(names) > 0 {
			fmt.Fprintf(&p.out, "%s: %s\n", typ[strings.LastIndexByte(typ, '.')+1:], strings.Join(names, ", "))
		}
	}
	p.set = set
}

func (p *player) reply(id policies.ReplicaID) {
	r, ok := p.state.Reply(id)
	if !ok {
		fmt.Fprintf(&p.out, "none\n")
		return
	}
	m := r.Encode(9)
	fmt.Fprintf(&p.out, "epoch %d, mean %.0f", m.GetEpoch(), m.GetStageMeanHeld())
	if n := (bidask.Detector{}).Excess(p.state.registry.Get(id).Report.Load.Held, policies.Tokens(m.GetStageMeanHeld())); n > 0 {
		fmt.Fprintf(&p.out, ", an outlier by %d", n)
	}
	if m.GetDrain() {
		p.out.WriteString(", drain")
	}
	if b := m.GetRefine(); b != nil {
		var next policies.Batch
		for _, x := range b.GetNext() {
			next = next.Plus(policies.Batch{N: x.GetN(), SumI2: x.GetSumInput2(), SumL: x.GetSumLength()})
		}
		fmt.Fprintf(&p.out, ", refine %v in (%v, %v) of epoch %d: %d peers, %d successors with %.1f requests of %.0f tokens, squares %.0f",
			b.GetBoundary(), b.GetLow(), b.GetHigh(), b.GetEpoch(), b.GetPeers(), b.GetSuccessors(), next.N, next.SumL, next.SumI2)
	}
	for _, x := range m.GetPrefillRanges() {
		fmt.Fprintf(&p.out, ", %s for %d to %d", x.GetReplica(), x.GetLow(), x.GetHigh())
	}
	p.out.WriteString("\n")
}

func (p *player) history() {
	s := p.state.Snapshot(p.now)
	for _, c := range s.History {
		fmt.Fprintf(&p.out, "%v epoch %d %s: %s", c.Time.Sub(start), c.Epoch, c.Decision, why(c.Reason))
		if c.Times > 0 {
			fmt.Fprintf(&p.out, ", %d times until %v", c.Times, c.Until.Sub(start))
		}
		if c.By != "" {
			fmt.Fprintf(&p.out, ", by %s", c.By)
		}
		if c.Observed > 0 {
			fmt.Fprintf(&p.out, ", %.0f %% of the predicted iteration", 100*c.Observed/c.Predicted)
		}
		p.out.WriteString("\n")
	}
	for _, old := range s.FormerPlans {
		fmt.Fprintf(&p.out, "past: epoch %d, %v at %v\n", old.Epoch, old.Counts, old.Cuts)
	}
}

func (p *player) show() {
	s := p.state.Snapshot(p.now)
	var plans []string
	for _, m := range s.Models {
		plans = append(plans, fmt.Sprintf("%s%s (%s)", prefix(m.Name), plantest.Format(m.Plan), why(m.Reason)))
	}
	fmt.Fprintf(&p.out, "epoch %d: %s\nserves%s\n", s.Epoch, strings.Join(plans, "; "), routing(s))
	for _, m := range s.Models {
		if m.Planner != "" {
			fmt.Fprintf(&p.out, "%splanner: %s\n", prefix(m.Name), why(m.Planner))
		}
		for _, r := range m.Replicas {
			if r.Topology.Known {
				fmt.Fprintf(&p.out, "%s: its topology is known\n", r.ID)
			}
			if r.Topology.Host != r.Host {
				p.t.Errorf("%s is on %q and configured on %q", r.ID, r.Topology.Host, r.Host)
			}
			if len(r.Routes) > 0 {
				fmt.Fprintf(&p.out, "%s: %d routes\n", r.ID, len(r.Routes))
			}
			for _, problem := range r.Problems {
				fmt.Fprintf(&p.out, "%s: %s: %s\n", r.ID, problem.Kind, problem.Text)
			}
			if r.Note != "" {
				fmt.Fprintf(&p.out, "%s: %s\n", r.ID, r.Note)
			}
		}
	}
}
