package policyhost

import (
	"cmp"
	"context"
	"log/slog"

	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/migrator/market"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/planguard"
	"github.com/cascadeinfer/cascade/wasm/slothost"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// Host has the slots of one process. Migrators in one process share a Host.
type Host struct {
	Slots    *slothost.Slots
	Native   slothost.Native // decides while no module does
	policies wiring.Policies
	name     string // as in reports
	log      *slog.Logger
}

// HostConfig configures a Host.
type HostConfig struct {
	// Fleet must have modules enabled. Required.
	Fleet *wiring.Fleet
	// Role and Name identify the process that owns the slots.
	Role identity.Role
	Name string
	// Replicas is the number of replicas that share the host; 0 means 1.
	Replicas int
	// Kinds are the kinds that the host decides. Native decides while no module does.
	// Required.
	Kinds  []abi.Kind
	Native slothost.Native
	// Fetch gets modules. Required.
	Fetch  Fetch
	Logger *slog.Logger // nil discards logs
}

// NewHost reads the keys and makes the slots. It starts no goroutine.
func NewHost(c HostConfig) (*Host, error) {
	p, err := c.Fleet.Policies(c.Role, c.Name, c.Replicas)
	if err != nil {
		return nil, err
	}
	set, err := slothost.New(slothost.Config{
		Kinds: c.Kinds, Native: c.Native, Ring: p.Ring, Fetch: c.Fetch, Limits: p.Limits, Gates: p.Gates, Cache: p.Cache,
		File: p.MarksFile, Every: p.RecordEvery, Instances: p.Instances, Logger: c.Logger,
	})
	if err != nil {
		return nil, err
	}
	log := cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return &Host{Slots: set, Native: c.Native, policies: p, name: nodeName(c.Role, c.Name), log: log}, nil
}

// Run runs the slots until ctx ends.
func (h *Host) Run(ctx context.Context) error { return h.Slots.Run(ctx) }

// nodeName returns the name of a host in reports: a replica's ID, or "control/" and the
// name of a control plane.
func nodeName(role identity.Role, name string) string {
	if role == identity.Control {
		return "control/" + name
	}
	return name
}

// Name returns the name of the host in reports: a replica's ID, "control/" and the name
// of a control plane, or the name that replicas in one process share.
func (h *Host) Name() string { return h.name }

// MarksWarning returns why the host does not keep across restarts which modules it has
// admitted, so that older ones could be admitted again; "" when it does.
func (h *Host) MarksWarning() string { return h.policies.MarksWarning }

// ConfigureMarket makes a market use the slots. Scope is the scope of its refiner: the
// name of the node. A market without a refiner gets none.
func (h *Host) ConfigureMarket(m *market.Config, scope string) {
	m.Machine.Quoter, m.Machine.Selector = h.Slots.Quoter(), h.Slots.Selector()
	m.Detector, m.Placer = h.Slots.Detector(), h.Slots.Placer()
	if m.Refiner != nil {
		log := h.log.With("scope", scope)
		m.Refiner = planguard.Refiner{Proposer: h.Slots.Refiner(scope), Refused: func(err error) { log.Info("a proposed boundary is not taken", "error", err) }}
	}
}

// Follower applies the slot specs in the snapshots of an xDS client to a host.
type Follower struct {
	host  *Host
	taken map[string]string // the applied versions, by resource
}

// Follower returns a Follower. Its Update must not be called concurrently.
func (h *Host) Follower() *Follower { return &Follower{h, make(map[string]string)} }

// Update applies the specs that have changed. Slots that are not in the snapshot stay as
// they are.
func (f *Follower) Update(s *routing.Snapshot) {
	for name, slot := range s.Slots {
		if f.taken[name] == slot.Version {
			continue
		}
		f.taken[name] = slot.Version
		if err := f.host.ApplyResource(name, slot.Config); err != nil {
			f.host.log.Error("policy slot passed its check and cannot be applied", "slot", name, "error", err)
		}
	}
}
