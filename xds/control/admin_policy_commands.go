package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/store"
)

// asBadRequest turns the errors of a change that are mistakes in the request
// into a badRequest.
func asBadRequest(s policyslots.Slot, err error) (policyslots.Slot, error) {
	for _, known := range [...]error{policyslots.ErrReplayed, policyslots.ErrNoCandidate, policyslots.ErrOther, policyslots.ErrNative} {
		if errors.Is(err, known) {
			return s, err
		}
	}
	if err != nil {
		return s, badRequest(err.Error())
	}
	return s, nil
}

// policyCommand is the query of a command about policies.
type policyCommand struct {
	slots      []string
	generation uint64 // 0: any
	goal       policyslots.Goal
	permille   int
	scope, by  string
	reason     string
}

func parsePolicyCommand(q url.Values) (o policyCommand, err error) {
	o = policyCommand{slots: q["slot"], goal: policyslots.Goal(q.Get("goal")), scope: q.Get("scope"), by: q.Get("by"), reason: q.Get("reason")}
	if len(o.slots) == 0 {
		return o, badRequest("slot: missing; use ?slot=KIND, one of " + strings.Join(policyslots.Kinds(), ", "))
	}
	seen := make(map[string]bool)
	for _, slot := range o.slots {
		if !policyslots.Known(slot) || seen[slot] {
			return o, badRequest(fmt.Sprintf("slot %.40q: unknown or repeated; must be one of %s", slot, strings.Join(policyslots.Kinds(), ", ")))
		}
		seen[slot] = true
	}
	if text := q.Get("permille"); text != "" {
		if o.permille, err = strconv.Atoi(text); err != nil {
			return o, badRequest(fmt.Sprintf("permille %.40q: must be a number from 1 to %d", text, policyslots.Permilles-1))
		}
	}
	if text := q.Get("generation"); text != "" {
		if o.generation, err = strconv.ParseUint(text, 10, 64); err != nil {
			return o, badRequest(fmt.Sprintf("generation %.40q: must be a number", text))
		}
	}
	if len(o.by) > maxBy || !printable(o.by) {
		return o, badRequest(fmt.Sprintf("by: must be a name of up to %d printable bytes", maxBy))
	}
	if len(o.reason) > policyslots.MaxReason || !printable(o.reason) {
		return o, badRequest(fmt.Sprintf("reason: must be up to %d printable bytes", policyslots.MaxReason))
	}
	return o, nil
}

// handlePolicyCommand returns a command about the slots of ?slot=.
func (c *Control) handlePolicyCommand(give func(context.Context, policyCommand) error) command {
	return func(ctx context.Context, q url.Values) (any, error) {
		o, err := parsePolicyCommand(q)
		if err != nil {
			return nil, err
		}
		if err := give(ctx, o); err != nil {
			return nil, err
		}
		return c.Policies(o.slots...), nil
	}
}

// setGoal sets the goal of the candidates of some slots. They are admitted
// again, because what a site allows depends on the goal.
func (c *Control) setGoal(ctx context.Context, o policyCommand) error {
	if c.cfg.Admitter == nil {
		return errPoliciesOff
	}
	done, err := acquire(ctx, c.pushes)
	if err != nil {
		return err
	}
	defer done()
	now := storedTime(time.Now())
	generations, scopes := make(map[string]uint64, len(o.slots)), make(map[string]string, len(o.slots))
	for _, kind := range o.slots {
		s := policyslots.Of(c.slots.stored(), kind).Clone()
		// Mistakes in the request are reported before the rules are evaluated.
		if scopes[kind], err = c.resolveScope(kind, o.goal, o.scope, s.Candidate); err != nil {
			return err
		}
		if _, err := asBadRequest(s.Move(now, o.generation, o.goal, o.permille, scopes[kind])); err != nil {
			return err
		}
		t := s.Candidate
		if err := c.checkGates(kind, t.Generation, o.goal); err != nil {
			return err
		}
		code, err := c.cfg.Modules.Get(store.Digest(t.SHA256))
		if err != nil {
			return fmt.Errorf("slot %s: the bytes of generation %d (%s, sha256 %s) are lost: %w; push the same module and signature again, which puts them back",
				kind, t.Generation, t.Name, t.SHA256, err)
		}
		if _, err := c.cfg.Admitter.Admit(ctx, Push{
			Slot: kind, Goal: o.goal, Permille: o.permille, Scope: scopes[kind], Module: code, Signature: t.Signature, Configuration: t.Configuration, Current: s, By: o.by,
		}); err != nil {
			return inadmissibleError(kind, err)
		}
		generations[kind] = t.Generation
	}
	return c.slots.change(ctx, o.slots, func(s policyslots.Slot) (policyslots.Slot, error) {
		return asBadRequest(s.Move(now, generations[s.Kind], o.goal, o.permille, scopes[s.Kind]))
	})
}

// checkGates refuses a goal whose promotion gates would end the generation on a
// host, by the results in shadow: there it can still be examined.
func (c *Control) checkGates(kind string, generation uint64, goal policyslots.Goal) error {
	if goal != policyslots.Canary && goal != policyslots.Active {
		return nil
	}
	now := time.Now()
	if why := policyslots.Against(kind, generation, now, c.slots.reports(now)); why != "" {
		return inadmissibleError(kind, fmt.Errorf("generation %d stays where it is, because gates would end it further on: %s; see \"cascade policy records\" and \"diff\" for which; "+
			"\"--to proven\" asks no gate", generation, why))
	}
	return nil
}

// rollback ends the newest generation of some slots. It needs no admission.
func (c *Control) rollback(ctx context.Context, o policyCommand) error {
	now, reason := storedTime(time.Now()), o.reason
	if reason == "" {
		reason = "rolled back by an operator"
	}
	return c.slots.change(ctx, o.slots, func(s policyslots.Slot) (policyslots.Slot, error) {
		return asBadRequest(s.Rollback(now, o.generation, reason, o.by))
	})
}

// refine is the kind whose scopes are the replicas' hosts; those of the other
// kinds are the models.
const refine = "refine"

// resolveScope returns the scope in which a slot's candidate begins. If the
// command names none, it is the present one or the only one. An unknown scope
// is an error that lists the known ones, because the candidate would wait for
// it forever.
func (c *Control) resolveScope(kind string, g policyslots.Goal, scope string, has *policyslots.Trial) (string, error) {
	if policyslots.PerRequest(kind) || g == policyslots.Proven {
		return scope, nil
	}
	known := make(map[string]bool)
	if s := c.fleet.Snapshot(); s != nil {
		for _, m := range s.Models {
			if kind != refine {
				known[m.Name] = true
				continue
			}
			for _, r := range m.Replicas {
				known[r.Host] = true
			}
		}
	}
	names := slices.Sorted(maps.Keys(known))
	if scope == "" && has != nil {
		scope = has.Scope
	}
	if scope == "" && len(names) == 1 {
		scope = names[0]
	}
	switch {
	case len(names) == 0, known[scope]:
		return scope, nil
	case scope == "" && g != policyslots.Canary && g != policyslots.Active:
		return "", nil
	case scope == "":
		return "", badRequest(fmt.Sprintf("slot %s: scope: missing; must be one of %s", kind, strings.Join(names, ", ")))
	}
	return "", badRequest(fmt.Sprintf("slot %s: scope %.40q: unknown; must be one of %s", kind, scope, strings.Join(names, ", ")))
}
