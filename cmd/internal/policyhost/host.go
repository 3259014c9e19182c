package policyhost

import (
	"log/slog"

	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/migrator/market"
	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/planguard"
	"github.com/cascadeinfer/cascade/wasm/policy"
	"github.com/cascadeinfer/cascade/wasm/slothost"
	"github.com/cascadeinfer/cascade/xds/client"
)

// ControlKinds are what a control plane decides, MigratorKinds what a migrator does.
var (
	ControlKinds  = []abi.Kind{abi.Partition, abi.Guard}
	MigratorKinds = []abi.Kind{abi.Refine, abi.Quote, abi.Select, abi.Outlier, abi.Place}
)

// Host is the slots of one process and what keeps them as the fleet wants them.
// Migrators that share a process share them.
type Host struct {
	*Node
	Slots    *slothost.Slots
	Native   policy.Native // what decides where no module does
	policies wiring.Policies
	name     string // as in reports
}

// HostConfig sets a Host up.
type HostConfig struct {
	// Fleet is one that has Modules. Required.
	Fleet *wiring.Fleet
	// Role and Name are whose slots these are.
	Role identity.Role
	Name string
	// Replicas is how many share the host; 0 means 1.
	Replicas int
	// Kinds are those that the host decides, Native decides where no module does.
	// Required.
	Kinds  []abi.Kind
	Native policy.Native
	// Fetch gets modules. Required.
	Fetch  Fetch
	Logger *slog.Logger // nil discards
}

// NewHost reads the keys and makes the slots; nothing runs yet.
func NewHost(c HostConfig) (*Host, error) {
	p, err := c.Fleet.Policies(c.Role, c.Name, c.Replicas)
	if err != nil {
		return nil, err
	}
	set, err := slothost.New(slothost.Config{
		Kinds: c.Kinds, Native: c.Native, Ring: p.Ring, Limits: p.Limits, Gates: p.Gates, Cache: p.Cache,
		File: p.MarksFile, Every: p.RecordEvery, Instances: p.Instances, Logger: c.Logger,
	})
	if err != nil {
		return nil, err
	}
	if err := set.Err(); err != nil && c.Logger != nil {
		c.Logger.Error("no module is taken; the built-in policies decide", "error", err)
	}
	node, err := NewNode(NodeConfig{Slots: set, Fetch: c.Fetch, Logger: c.Logger})
	return &Host{Node: node, Slots: set, Native: c.Native, policies: p, name: nodeName(c.Role, c.Name)}, err
}

// nodeName is the name of a host as reports have it: a replica's id, or that of a
// control plane.
func nodeName(role identity.Role, name string) string {
	if role == identity.Control {
		return "control/" + name
	}
	return name
}

// Name is that of the host in reports: a replica's id, "control/" and the name of a
// control plane, or what replicas that share it call it.
func (h *Host) Name() string { return h.name }

// MarksWarning says why the host will have forgotten after a restart which modules it has
// admitted, so that old ones can come back; "" where it will not.
func (h *Host) MarksWarning() string { return h.policies.MarksWarning }

// ConfigureMarket has a market ask the slots. The scope is that of its refiner: the
// machine's name. A market that does not refine goes on not to.
func (h *Host) ConfigureMarket(m *market.Config, scope string) {
	m.Machine.Quoter, m.Machine.Selector = h.Slots.Quoter(), h.Slots.Selector()
	m.Detector, m.Placer = h.Slots.Detector(), h.Slots.Placer()
	if m.Refiner != nil {
		log := h.log.With("scope", scope)
		m.Refiner = planguard.Refiner{Proposer: h.Slots.Refiner(scope), Refused: func(err error) { log.Info("a proposed boundary is not taken", "error", err) }}
	}
}

// Follower takes the slots of a host out of the snapshots of an xDS client.
type Follower struct {
	host  *Host
	taken map[string]string // versions, by resource
}

// Follower returns one, whose Update is called by one goroutine at a time.
func (h *Host) Follower() *Follower { return &Follower{h, make(map[string]string)} }

// Update takes what is new. A slot that the control plane has no word on stays as
// it is.
func (f *Follower) Update(s *client.Snapshot) {
	for name, slot := range s.Slots {
		if f.taken[name] == slot.Version {
			continue
		}
		f.taken[name] = slot.Version
		if err := f.host.ApplyResource(name, slot.Config); err != nil {
			f.host.log.Error("policy slot passed its check and cannot be decoded", "slot", name, "error", err)
		}
	}
}
