package planguard

import (
	"fmt"
	"strings"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// Guard judges a change of plan: a module's guard, a native one, or rules in
// Rego.
type Guard interface {
	// Check returns what is against the change; nothing when nothing is. The
	// error says that the guard could not judge. It must return: a guard has a
	// deadline of its own.
	Check(abi.Change) ([]abi.Denial, error)
}

// Named is a guard with the name that its denials are reported under.
type Named struct {
	Name  string
	Guard Guard
}

// Denial is what a guard has against a plan.
type Denial struct {
	Guard string
	abi.Denial
}

// Denied is the error for a plan that may not be.
type Denied struct{ Denials []Denial } // not empty

// Error lists the denials. Details are quoted: guards write what they like.
func (d *Denied) Error() string {
	var b strings.Builder
	b.WriteString("plan denied")
	for i, x := range d.Denials {
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		fmt.Fprintf(&b, "%s%s, rule %d", sep, x.Guard, x.Code)
		if x.Stage >= 0 {
			fmt.Fprintf(&b, ", stage %d", x.Stage)
		}
		if x.Detail != "" {
			fmt.Fprintf(&b, ", %q", x.Detail)
		}
	}
	return b.String()
}

// Check reports why a plan may not replace another: an error about an invariant,
// or a *Denied with what all guards have against it. A guard that cannot judge
// denies. Now is the zero Plan where there is none.
func Check(change abi.Change, guards []Named) error {
	if err := keeps(change); err != nil {
		return fmt.Errorf("plan refused: %w", err)
	}
	var denied Denied
	for _, g := range guards {
		// Plans are lent to each guard anew: none sees what another did to them.
		denials, err := g.Guard.Check(abi.Change{Now: clonePlan(change.Now), Next: clonePlan(change.Next)})
		if err != nil {
			denials = []abi.Denial{{Stage: -1, Detail: cut("cannot judge: " + err.Error())}}
		}
		for _, d := range denials {
			d.Detail = cut(d.Detail)
			if d.Stage < 0 || d.Stage >= len(change.Next.Stages) {
				d.Stage = -1
			}
			denied.Denials = append(denied.Denials, Denial{g.Name, d})
		}
	}
	if len(denied.Denials) > 0 {
		return &denied
	}
	return nil
}

// keeps checks what every plan has to keep, whoever made it.
func keeps(c abi.Change) error {
	if err := c.Next.Validate(); err != nil {
		return err
	}
	if len(c.Now.Stages) == 0 {
		return nil
	}
	switch {
	case c.Next.Model != c.Now.Model:
		return fmt.Errorf("model %.80q instead of %.80q", c.Next.Model, c.Now.Model)
	case c.Next.Epoch <= c.Now.Epoch:
		return fmt.Errorf("epoch %d after %d: epochs grow", c.Next.Epoch, c.Now.Epoch)
	}
	return nil
}

func clonePlan(p policies.Plan) policies.Plan {
	stages := make([]policies.Stage, len(p.Stages))
	for i, s := range p.Stages {
		s.Replicas = append([]policies.ReplicaID(nil), s.Replicas...)
		stages[i] = s
	}
	if p.Stages != nil {
		p.Stages = stages
	}
	return p
}

func cut(s string) string { return s[:min(len(s), abi.MaxDetail)] }

// Asked turns a guard that is a policy, as modules and native guards are, into a
// Guard. Its answer is final: it cannot fail to judge.
type Asked struct {
	Policy interface {
		Guard(abi.Change) (abi.Denial, bool)
	}
}

// Check implements Guard.
func (a Asked) Check(c abi.Change) ([]abi.Denial, error) {
	if d, denied := a.Policy.Guard(c); denied {
		return []abi.Denial{d}, nil
	}
	return nil, nil
}
