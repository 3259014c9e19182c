package policyhost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/migrator/market"
	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
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
// Name and Store must be set, and Modules and Notes where they are not in the state directory. Run must run as long as the control plane. When modules are
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
		kept := c.Modules // of etcd
		if kept == nil {
			if kept, err = modulesOf(f); err != nil {
				return nil, err
			}
		}
		p.Host, err = NewHost(HostConfig{
			Fleet: f, Role: identity.Control, Name: c.Name, Kinds: ControlKinds, Native: f.NativePolicies(market.Config{}), Logger: log,
			Fetch: func(_ context.Context, digest lifecycle.Digest) ([]byte, error) {
				return kept.Get(digest)
			},
		})
		if err != nil {
			return nil, fmt.Errorf("policies: %w", err)
		}
		if reason := p.Host.MarksWarning(); reason != "" && log != nil {
			log.Warn("modules that are admitted are not remembered", "reason", reason)
		}
		set = p.Host.Slots
		c.Modules, c.Slots = kept, p.Host
		if c.Shared && c.Notes == nil {
			if c.Notes, err = notesOf(f); err != nil {
				return nil, err
			}
		}
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

// modulesOf returns the store in which the control planes keep pushed modules.
func modulesOf(f *wiring.Fleet) (store.Modules, error) {
	dir := f.ModulesDir()
	if dir == "" {
		return new(store.MemoryModules), nil
	}
	kept, err := store.NewModuleFolder(dir)
	if err != nil {
		return nil, fmt.Errorf("policies.modules: %w", err)
	}
	return kept, nil
}

// notesOf returns the notes in which control planes that share a state directory report
// their slots to each other.
func notesOf(f *wiring.Fleet) (*store.NoteFolder, error) {
	dir := f.StateDir()
	if dir == "" {
		return nil, errors.New("modules: several control planes share a state directory, or etcd: set state")
	}
	notes, err := store.NewNoteFolder(filepath.Join(dir, "planes"))
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return notes, nil
}

// Run runs the control plane's own slots until ctx ends. It returns at once if there are
// none.
func (p *Plane) Run(ctx context.Context) error {
	if p.Host == nil {
		return nil
	}
	return p.Host.Run(ctx)
}
