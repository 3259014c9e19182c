package policyhost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/rego"
	"github.com/cascadeinfer/cascade/wasm/sign"
	"github.com/cascadeinfer/cascade/xds/control"
)

// Admission decides which modules are admitted to the slots of a fleet, and for which
// goals: by their signatures, by their exports, and by the site's rules. It is safe for
// concurrent use.
type Admission struct {
	policies wiring.Policies
	site     *rego.Rules // nil for none
}

var _ control.Admitter = (*Admission)(nil)

// NewAdmission returns an Admission with the keys and limits of p and the rules of c.
func NewAdmission(p wiring.Policies, c *Control) *Admission {
	return &Admission{policies: p, site: c.site}
}

// Admit implements control.Admitter. When the module is that of the slot's candidate, and
// gets another goal, Admit does not load it again. It always checks the statement, its
// expiry included, and the rules for the step.
func (a *Admission) Admit(ctx context.Context, p control.Push) (control.Admitted, error) {
	k, ok := abi.ParseKind(string(p.Slot))
	if !ok || !p.Slot.Known() {
		return control.Admitted{}, fmt.Errorf("%.40q is not a policy kind", string(p.Slot))
	}
	if why := a.policies.UnusedReason[k]; why != "" {
		return control.Admitted{}, fmt.Errorf("nothing would ask it: %s", why)
	}
	file, err := sign.Decode(p.Signature)
	if err != nil {
		return control.Admitted{}, err
	}
	st, err := sign.Verify(file, p.Module, p.Configuration, a.policies.Ring, time.Now())
	if err != nil {
		return control.Admitted{}, a.unknown(file, err)
	}
	if _, ok := st.Grant(k); !ok {
		return control.Admitted{}, fmt.Errorf("the statement about %s does not let it decide %s: sign it with --kind %s", st.Name, k, k)
	}
	out := control.Admitted{
		Generation: st.Generation, Name: st.Name, Version: st.Version, SHA256: st.Digest, Configuration: p.Configuration, Signers: signers(file, a.policies.Ring),
		Caveat: a.policies.Caveat[k],
	}
	if len(file.Golden) > 0 {
		if _, err := calllog.Golden(file.Golden, st.Digest); err != nil {
			return control.Admitted{}, err
		}
	}
	candidate := p.Current.Candidate
	again := candidate != nil && candidate.Generation == st.Generation && bytes.Equal(candidate.Signature, p.Signature)
	if !again {
		if err := a.checkLoads(ctx, k, p); err != nil {
			return control.Admitted{}, err
		}
	}
	return out, a.checkRules(k, p, out, again)
}

// unknown adds to an error the keys that have signed, if none of them is in the ring,
// and the keys of the ring.
func (a *Admission) unknown(f sign.File, err error) error {
	if len(signers(f, a.policies.Ring)) > 0 || len(f.Signatures) == 0 {
		return err
	}
	var own, ring []string
	for _, s := range f.Signatures {
		own = append(own, s.Key.String())
	}
	for _, key := range a.policies.Ring.Keys {
		ring = append(ring, sign.IDOf(key).String())
	}
	return fmt.Errorf("%w: key %s has signed, and policies.keys of the fleet file has %s", err, strings.Join(own, ", "), strings.Join(ring, ", "))
}

// signers returns the IDs of the keys of the ring that have signed.
func signers(f sign.File, r sign.Ring) (names []string) {
	for _, key := range r.Keys {
		for _, s := range f.Signatures {
			if s.Key == sign.IDOf(key) {
				names = append(names, s.Key.String())
			}
		}
	}
	return names
}

// checkLoads returns why hosts could not load the module, or not configure it. It does not run the module.
func (a *Admission) checkLoads(ctx context.Context, k abi.Kind, p control.Push) error {
	m, err := host.Load(ctx, host.Config{Kinds: []abi.Kind{k}, Limits: a.policies.Limits, Cache: a.policies.Cache}, p.Module)
	if err != nil {
		return err
	}
	if len(p.Configuration) > 0 && !m.Decides(abi.Configure) {
		err = fmt.Errorf("it has a configuration of %d bytes, and does not export %s: sign it without",
			len(p.Configuration), abi.Configure.Export())
	}
	return errors.Join(err, m.Close())
}

// checkRules returns why the site's rules deny a step.
func (a *Admission) checkRules(k abi.Kind, p control.Push, m control.Admitted, again bool) error {
	if a.site == nil || !a.site.Rollouts() {
		return nil
	}
	o := rego.Rollout{
		Slot: string(p.Slot), Kind: k.String(), Name: m.Name, Version: m.Version, Generation: uint64(m.Generation), Signers: m.Signers,
		To: p.Goal.String(), Permille: p.Permille, Scope: p.Scope, Stable: p.Goal == lifecycle.ToStable,
	}
	if o.Stable {
		o.To = lifecycle.ToActive.String()
	}
	if again {
		c := p.Current.Candidate
		o.From, o.PermilleBefore, o.Soaked = c.Goal.String(), c.Permille, time.Since(c.Since).Seconds()
	}
	v, err := a.site.Rollout(o)
	if err != nil {
		return fmt.Errorf("the site's rules cannot judge it: %w", err)
	}
	if len(v.Denials) == 0 {
		return nil
	}
	var why []string
	for _, d := range v.Denials {
		why = append(why, fmt.Sprintf("rule %d, %q", d.Code, d.Detail))
	}
	return errors.New("the site's rules deny it: " + strings.Join(why, "; "))
}
