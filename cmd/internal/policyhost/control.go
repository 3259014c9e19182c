package policyhost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/planguard"
	"github.com/cascadeinfer/cascade/wasm/rego"
	"github.com/cascadeinfer/cascade/wasm/slothost"
)

// ControlConfig configures a Control.
type ControlConfig struct {
	// Set has the control plane's slots, of wiring.ControlKinds; nil when modules are
	// disabled.
	Set *slothost.Slots
	// Site has the site's rules. Without files there are none.
	Site wiring.RegoRules
	// Logger logs refused proposals. Nil discards them.
	Logger *slog.Logger
}

// Control checks what modules propose for the plans of a fleet: the host recomputes
// proposals, and the guards and the site's rules judge plans. Its methods may be called
// from any goroutine.
type Control struct {
	set  *slothost.Slots
	site *rego.Rules
	log  *slog.Logger
}

// NewControl compiles the rules. The error names the file and the line.
func NewControl(ctx context.Context, c ControlConfig) (*Control, error) {
	out := &Control{set: c.Set, log: c.Logger}
	if out.log == nil {
		out.log = slog.New(slog.DiscardHandler)
	}
	if len(c.Site.Files) == 0 {
		return out, nil
	}
	var err error
	if out.site, err = rego.New(ctx, rego.Config{Files: c.Site.Files, Data: c.Site.Data}); err != nil {
		return nil, fmt.Errorf("policies.rules: %w", err)
	}
	return out, nil
}

// Wrap implements fleet.Rules.Wrap. Its planner returns the proposal of the slot if the
// plan guard (planguard.Planner) accepts it, and the native partition otherwise.
func (c *Control) Wrap(model string, native adoption.Planner) adoption.Planner {
	if c.set == nil {
		return native
	}
	log := c.log.With("model", model)
	return planguard.Planner{Proposer: c.set.Partitioner(model), Native: native, Refused: func(err error) {
		if !errors.Is(err, policies.ErrInfeasible) { // not worth a warning: there was nothing to propose
			log.Warn("a proposed partition is not taken", "error", err)
		}
	}}
}

// Check implements fleet.Rules.Check. It returns why the guards or the site's rules deny
// a plan.
func (c *Control) Check(before, after policies.Plan) error {
	var guards []planguard.NamedGuard
	if c.set != nil {
		guards = append(guards, planguard.NamedGuard{Name: "guard", Guard: planguard.PolicyGuard{Policy: c.set.Guard(after.Model)}})
	}
	if c.site != nil && c.site.Plans() {
		guards = append(guards, planguard.NamedGuard{Name: "site", Guard: c.site})
	}
	return planguard.Check(abi.Change{Now: before, Next: after}, guards)
}
