package planguard

import (
	"fmt"
	"strings"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// Guard judges a change of plan. It is a module, a native policy, or rules in Rego.
type Guard interface {
	// Check returns the denials of the change, none when it is allowed. An error
	// means that the guard could not judge. A guard has a deadline of its own, and
	// always returns.
	Check(abi.Change) ([]abi.Denial, error)
}

// NamedGuard is a guard with the name under which its denials are reported.
type NamedGuard struct {
	Name  string
	Guard Guard
}

// Denial is the reason of one guard against a plan.
type Denial struct {
	Guard string
	abi.Denial
}

// Denied is the error of a denied plan.
type Denied struct{ Denials []Denial } // not empty

// Error lists the denials. Details are quoted, because guards may write any text.
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

// Check returns why a plan may not replace another: an error about an invariant, or a
// *Denied with the denials of all guards. A guard that cannot judge denies. Now is the
// zero Plan when there is none.
func Check(change abi.Change, guards []NamedGuard) error {
	if err := checkInvariants(change); err != nil {
		return fmt.Errorf("plan refused: %w", err)
	}
	var denied Denied
	for _, g := range guards {
		// Each guard gets copies, because another guard may have changed its own.
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

// checkInvariants checks the invariants of every plan.
func checkInvariants(c abi.Change) error {
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
		return fmt.Errorf("epoch %d after %d: epochs must grow", c.Next.Epoch, c.Now.Epoch)
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

// PolicyGuard adapts a guard policy, a module or a native one, to Guard. Its Check returns
// no errors.
type PolicyGuard struct {
	Policy interface {
		Guard(abi.Change) (abi.Denial, bool)
	}
}

// Check implements Guard.
func (a PolicyGuard) Check(c abi.Change) ([]abi.Denial, error) {
	if d, denied := a.Policy.Guard(c); denied {
		return []abi.Denial{d}, nil
	}
	return nil, nil
}
