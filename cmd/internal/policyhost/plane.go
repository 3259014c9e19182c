package policyhost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/migrator/market"
	"github.com/cascadeinfer/cascade/wasm/slothost"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Plane has the modules and rules of a control plane.
type Plane struct {
	Control *Control
	Host    *Host // its own slots; nil when modules are disabled
}

// JoinPlane adds modules and rules to the Config of a control plane of the fleet; its
// Name must be set, and its Store where it is not memory. Run must run as long as the control plane. When modules are
// disabled and there are no rules, JoinPlane only sets Records.
func JoinPlane(ctx context.Context, f *wiring.Fleet, c *control.Config, log *slog.Logger) (*Plane, error) {
	site, err := f.RegoRules()
	if err != nil {
		return nil, err
	}
	p := new(Plane)
	var set *slothost.Slots
	if f.ModulesEnabled() {
		if c.Name == "" {
			return nil, errors.New("modules: a control plane with slots has a Name")
		}
		if c.Store == nil {
			c.Store = store.New(store.NewMemory())
		}
		p.Host, err = NewHost(HostConfig{
			Fleet: f, Role: identity.Control, Name: c.Name, Kinds: wiring.ControlKinds, Native: f.NativePolicies(market.Config{}), Logger: log,
			Fetch: c.Store.Module,
		})
		if err != nil {
			return nil, fmt.Errorf("policies: %w", err)
		}
		if reason := p.Host.MarksWarning(); reason != "" && log != nil {
			log.Warn("modules that are admitted are not remembered", "reason", reason)
		}
		set = p.Host.Slots
		c.Slots = p.Host
	}
	c.Records = Records(p.hosts()...)
	if p.Control, err = NewControl(ctx, ControlConfig{Set: set, Site: site, Logger: log}); err != nil {
		return nil, err
	}
	if set == nil && len(site.Files) == 0 {
		return p, nil
	}
	c.Rules.Wrap, c.Rules.Check = p.Control.Wrap, p.Control.Check
	if set != nil {
		c.Admitter = NewAdmission(p.Host.policies, p.Control)
	}
	return p, nil
}

// hosts returns the host of the control plane's own slots, if there is one.
func (p *Plane) hosts() []*Host {
	if p.Host == nil {
		return nil
	}
	return []*Host{p.Host}
}

// Run runs the control plane's own slots until ctx ends. It returns at once if there are
// none.
func (p *Plane) Run(ctx context.Context) error {
	if p.Host == nil {
		return nil
	}
	return p.Host.Run(ctx)
}
