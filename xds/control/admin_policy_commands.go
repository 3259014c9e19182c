package control

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// asBadRequest turns the errors of a change that are mistakes in the request
// into a badRequest.
func asBadRequest(s policyslots.Slot, err error) (policyslots.Slot, error) {
	if err != nil && statusCode(err) != http.StatusConflict {
		err = badRequest(err.Error())
	}
	return s, err
}

// policyQuery is the query of a command about policies.
type policyQuery struct {
	slots      []lifecycle.Kind
	generation lifecycle.Generation // 0: any
	goal       lifecycle.Goal
	permille   int
	scope, by  string
	reason     string
}

// queryKinds returns the slots that a query names.
func queryKinds(q url.Values) (kinds []lifecycle.Kind) {
	for _, name := range q["slot"] {
		kinds = append(kinds, lifecycle.Kind(name))
	}
	return kinds
}

func parsePolicyQuery(q url.Values) (o policyQuery, err error) {
	o = policyQuery{slots: queryKinds(q), scope: q.Get("scope"), by: q.Get("by"), reason: q.Get("reason")}
	if text := q.Get("goal"); text != "" {
		if o.goal, err = lifecycle.ParseGoal(text); err != nil {
			return o, badRequest(err.Error())
		}
	}
	if len(o.slots) == 0 {
		return o, badRequest("slot: missing; use ?slot=KIND, one of " + strings.Join(lifecycle.KindNames(), ", "))
	}
	seen := make(map[lifecycle.Kind]bool)
	for _, slot := range o.slots {
		if !slot.Known() || seen[slot] {
			return o, badRequest(fmt.Sprintf("slot %.40q: unknown or repeated; must be one of %s", string(slot), strings.Join(lifecycle.KindNames(), ", ")))
		}
		seen[slot] = true
	}
	if text := q.Get("permille"); text != "" {
		if o.permille, err = strconv.Atoi(text); err != nil {
			return o, badRequest(fmt.Sprintf("permille %.40q: must be a number from 1 to %d", text, lifecycle.Permilles-1))
		}
	}
	if text := q.Get("generation"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return o, badRequest(fmt.Sprintf("generation %.40q: must be a number", text))
		}
		o.generation = lifecycle.Generation(n)
	}
	if cleantext.Printable(o.by, maxBy) != o.by {
		return o, badRequest(fmt.Sprintf("by: must be a name of up to %d printable bytes", maxBy))
	}
	if cleantext.Printable(o.reason, policyslots.MaxReason) != o.reason {
		return o, badRequest(fmt.Sprintf("reason: must be up to %d printable bytes", policyslots.MaxReason))
	}
	return o, nil
}

// policyCommand returns a command about the slots of ?slot=.
func (c *Control) policyCommand(give func(context.Context, policyQuery) error) command {
	return func(ctx context.Context, q url.Values) (any, error) {
		o, err := parsePolicyQuery(q)
		if err != nil {
			return nil, err
		}
		if err := give(ctx, o); err != nil {
			return nil, err
		}
		return c.changedPolicies(o.slots), nil
	}
}

// setGoal sets the goal of the candidates of some slots. They must be admitted again,
// because a site may allow a module for some goals only.
func (c *Control) setGoal(ctx context.Context, o policyQuery) error {
	if c.cfg.Admitter == nil {
		return errPoliciesOff
	}
	done, err := acquire(ctx, c.pushes)
	if err != nil {
		return err
	}
	defer done()
	now := storedTime(time.Now())
	generations, scopes := make(map[lifecycle.Kind]lifecycle.Generation, len(o.slots)), make(map[lifecycle.Kind]string, len(o.slots))
	for _, kind := range o.slots {
		s := policyslots.Find(c.slots.stored(), kind).Clone()
		// Mistakes in the request are reported before the rules are evaluated.
		if scopes[kind], err = c.resolveScope(kind, o.goal, o.scope, s.Candidate); err != nil {
			return err
		}
		if _, err := asBadRequest(s.SetGoal(now, o.generation, o.goal, o.permille, scopes[kind])); err != nil {
			return err
		}
		t := s.Candidate
		if err := c.checkGates(kind, t.Generation, o.goal); err != nil {
			return err
		}
		code, err := c.cfg.Store.Module(ctx, t.SHA256)
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
		return asBadRequest(s.SetGoal(now, generations[s.Kind], o.goal, o.permille, scopes[s.Kind]))
	})
}

// checkGates refuses a goal for a generation that every host has rejected, and one whose
// promotion gates would end the generation on a host, given its results in shadow: while
// it stays in shadow it can still be examined.
func (c *Control) checkGates(kind lifecycle.Kind, generation lifecycle.Generation, goal lifecycle.Goal) error {
	now := time.Now()
	if why, everywhere := policyslots.Rejected(kind, generation, now, c.slots.reports(now)); everywhere {
		return inadmissibleError(kind, fmt.Errorf("every host has rejected generation %d: %s; push a corrected module as another generation", generation, why))
	}
	if goal != lifecycle.ToCanary && goal != lifecycle.ToActive {
		return nil
	}
	if why := policyslots.Blocked(kind, generation, now, c.slots.reports(now)); why != "" {
		return inadmissibleError(kind, fmt.Errorf("generation %d stays in shadow, because its gates would reject it: %s; see \"cascade policy status --records\" and \"diff\" for the calls; "+
			"\"--to stable\" skips the gates", generation, why))
	}
	return nil
}

// rollbackPolicies ends the newest generation of some slots. It needs no admission.
func (c *Control) rollbackPolicies(ctx context.Context, o policyQuery) error {
	now, reason := storedTime(time.Now()), o.reason
	if reason == "" {
		reason = "rolled back by an operator"
	}
	return c.slots.change(ctx, o.slots, func(s policyslots.Slot) (policyslots.Slot, error) {
		return asBadRequest(s.Rollback(now, o.generation, reason, o.by))
	})
}

// resolveScope returns the scope in which a slot's candidate begins: a replica's host
// for refine, a model for the other kinds. If the command names none, it is the present
// one or the only one. An unknown scope is an error that lists the known ones, because
// the candidate would wait for it forever.
func (c *Control) resolveScope(kind lifecycle.Kind, g lifecycle.Goal, scope string, has *policyslots.Trial) (string, error) {
	if kind.PerRequest() || g == lifecycle.ToStable {
		return scope, nil
	}
	known := make(map[string]bool)
	if s := c.fleet.Snapshot(); s != nil {
		for _, m := range s.Models {
			if kind != lifecycle.Refine {
				known[m.Name] = true
				continue
			}
			for _, r := range m.Replicas {
				known[r.Host] = true
			}
		}
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(known)), func(name string) bool { return name == "" })
	if scope == "" && has != nil {
		scope = has.Scope
	}
	if scope == "" && len(known) == 1 && len(names) == 1 {
		scope = names[0]
	}
	switch {
	case len(known) == 0, known[scope]:
		return scope, nil
	case scope == "" && g != lifecycle.ToCanary && g != lifecycle.ToActive:
		return "", nil
	case len(names) == 0:
		return "", badRequest(fmt.Sprintf("slot %s: scope %.40q: unknown; no replica names a host: set replicas[].host in the fleet file", kind, scope))
	case scope == "":
		return "", badRequest(fmt.Sprintf("slot %s: scope: missing; must be one of %s", kind, strings.Join(names, ", ")))
	}
	return "", badRequest(fmt.Sprintf("slot %s: scope %.40q: unknown; must be one of %s", kind, scope, strings.Join(names, ", ")))
}
