// Package wiring translates the fleet file into the Config of each component.
//
// Load or Resolve returns a Fleet, whose methods return the Configs. The daemons
// and the fleet in one process use the same methods, so that each field of the
// file is mapped to the field of a component in one place.
//
// The package decides nothing and starts nothing.
package wiring

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/localuser"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/admission"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/xds/auditlog"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/server"
	"github.com/cascadeinfer/cascade/xds/store"
)

// bucketsPerOctave is how finely flows are counted: front ends and planner must
// agree on it. The paper cuts at powers of two.
const (
	bucketsPerOctave      = 4
	paperBucketsPerOctave = 1
)

// poolingFactor is β in k ≥ u + β·√u: the head room that u replicas' worth of work
// needs against bursts.
const poolingFactor = 0.3

// Fleet is a fleet file with its cost profiles and hosts resolved.
type Fleet struct {
	config.Fleet
	Dir      string                  // relative paths of the file are relative to it
	Profiles map[string]cost.Profile // by model, at the fleet's speed
	// Machines are the hosts of the fleet file's topology, by node.
	Machines topology.Machines
	// CodeCache is the directory of machine code where policies.directory names none; "" for no cache.
	CodeCache string
	// Trusted are public keys besides those of policies.keys, of a program that signs
	// modules itself.
	Trusted         []ed25519.PublicKey
	replicaProfiles map[string]cost.Profile      // by replica, where it differs from the model's
	histories       map[string]policies.Workload // by model; see readHistories
}

// Load reads a fleet file and resolves its profiles.
func Load(path string) (Fleet, error) {
	f, err := config.Load(path)
	if err != nil {
		return Fleet{}, err
	}
	out, err := Resolve(f, filepath.Dir(path))
	if bad := (*config.FieldError)(nil); errors.As(err, &bad) {
		return Fleet{}, config.LocateErrors(path, []*config.FieldError{bad})
	}
	if err != nil {
		return Fleet{}, fmt.Errorf("%s: %w", path, err)
	}
	return out, nil
}

// Resolve reads the profiles and the topology of a valid fleet.
func Resolve(f config.Fleet, dir string) (Fleet, error) {
	profiles, err := f.Profiles(dir)
	if err != nil {
		return Fleet{}, err
	}
	own, err := f.ReplicaProfiles(dir)
	if err != nil {
		return Fleet{}, err
	}
	out := Fleet{Fleet: f, Dir: dir, Profiles: profiles, replicaProfiles: own}
	if err := out.readTopology(); err != nil {
		return Fleet{}, err
	}
	return out, nil
}

// Model returns a model of the fleet by name.
func (f *Fleet) Model(name string) (config.Model, bool) {
	for _, m := range f.Models {
		if m.Name == name {
			return m, true
		}
	}
	return config.Model{}, false
}

// Replica returns a replica of the fleet by id.
func (f *Fleet) Replica(id string) (config.Replica, error) {
	ids := make([]string, len(f.Fleet.Replicas))
	for i, r := range f.Fleet.Replicas {
		if r.ID == id {
			return r, nil
		}
		ids[i] = r.ID
	}
	if id == "" {
		return config.Replica{}, fmt.Errorf("name a replica; the fleet file has %q", ids)
	}
	return config.Replica{}, fmt.Errorf("replica %q is not in the fleet file; it has %q", id, ids)
}

// resolvePath returns the path of a file that the fleet file names.
func (f *Fleet) resolvePath(name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(f.Dir, name)
}

// TLS returns the PEM files of a component, by resolved paths.
func (f *Fleet) TLS(role identity.Role, name string) config.TLS {
	t := f.Fleet.TLS.ForComponent(role, name)
	t.Cert, t.Key, t.CA = f.resolvePath(t.Cert), f.resolvePath(t.Key), f.resolvePath(t.CA)
	return t
}

// scaled divides a duration of the file by the fleet's speed.
func (f *Fleet) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) / f.Speed)
}

// Edges returns the length buckets of a model.
func (f *Fleet) Edges(m config.Model) []policies.Tokens {
	if f.Preset == config.PresetPaper {
		return policies.BucketEdges(m.Context, paperBucketsPerOctave)
	}
	return policies.BucketEdges(m.Context, bucketsPerOctave)
}

// profile returns a replica's cost profile on one rank.
func (f *Fleet) profile(r config.Replica) cost.Profile {
	if p, ok := f.replicaProfiles[r.ID]; ok {
		return p
	}
	return f.Profiles[r.Model]
}

// capacity returns the capacity of a replica: that of the file, else of its
// profile.
func (f *Fleet) capacity(r config.Replica) policies.Capacity {
	c := f.profile(r).TensorParallel(r.TP).Capacity()
	if r.KVTokens > 0 {
		c.KV = r.KVTokens
	}
	if r.Batch > 0 {
		c.Batch = r.Batch
	}
	return c
}

// Registry returns the replicas as policies see them.
func (f *Fleet) Registry() []policies.Replica {
	out := make([]policies.Replica, len(f.Fleet.Replicas))
	for i, r := range f.Fleet.Replicas {
		out[i] = policies.Replica{
			ID: policies.ReplicaID(r.ID), Model: r.Model, Address: r.Address, Peer: r.Peer, Host: r.Host,
			Capacity: f.capacity(r), Adapters: f.AdaptersOf(r), Draining: r.Drain, Prefill: r.Role == config.RolePrefill, Engine: r.Engine,
		}
	}
	return out
}

// firstBytesPerToken is the first estimate of prompt bytes per token. It is learnt from exact counts once requests finish.
const firstBytesPerToken = 4

// scaleDownWindow is for how long fewer replicas must have been enough before fewer are recommended.
const scaleDownWindow = 10 * time.Minute

// Rules returns the models and how the control plane plans them.
func (f *Fleet) Rules() fleet.Rules {
	limit, ratio := f.IterationBounds()
	rules := fleet.Rules{
		Policy: f.Preset, Adopt: adoption.Rule(f.Planner.Adopt), IterationRatio: ratio, StageReplicas: f.Planner.StageReplicas, Speed: f.Speed,
		Period: f.Planner.Period, Seen: f.Planner.MinRequests, AnyRemoval: f.Fleet.Control.AnyRemoval,
	}
	rules.Scaling = planner.ScalerConfig{
		Utilisation: f.Planner.Utilisation,
		Window:      policies.Micros(scaleDownWindow.Microseconds()), Memory: policies.Micros(f.Planner.Window.Microseconds()),
	}
	for _, m := range f.Models {
		p := f.Profiles[m.Name].TensorParallel(f.minTensorParallel(m.Name))
		model := fleet.Model{
			Model: resources.Model{Name: m.Name, Context: m.Context, Hosts: m.Hosts, BytesPerToken: length.RatioOf(firstBytesPerToken)},
			QoE:   p.QoEModel(), Cost: p.Cost(), Transfer: p.Transfer(),
			Limits: policies.Limits{Stages: policies.MaxStages, Iteration: f.scaled(limit).Seconds(), Pooling: poolingFactor},
			Edges:  f.Edges(m), History: f.histories[m.Name],
		}
		f.setLinks(&model, p)
		rules.Models = append(rules.Models, model)
	}
	return rules
}

// minTensorParallel returns the smallest tensor-parallel width of a model's
// replicas.
func (f *Fleet) minTensorParallel(model string) int {
	least := 0
	for _, r := range f.Fleet.Replicas {
		if r.Model == model && (least == 0 || r.TP < least) {
			least = r.TP
		}
	}
	return max(1, least)
}

// Control returns the control plane's Config, without listeners and TLS. It
// opens the state, and reads the models' histories. The caller closes Store, unless it is nil,
// after the control plane has ended. For a state in Kubernetes it returns ErrNoKubernetes (wrapped).
func (f *Fleet) Control(log *slog.Logger) (control.Config, error) {
	state, err := f.OpenState()
	if err != nil {
		return control.Config{}, err
	}
	return f.ControlWith(log, state)
}

// ControlWith is Control with a state that the caller has opened; nil is memory. Where it fails, it closes the state.
func (f *Fleet) ControlWith(log *slog.Logger, state *store.Store) (control.Config, error) {
	c, err := f.controlConfig(log, state)
	if err != nil && state != nil {
		_ = state.Close()
	}
	return c, err
}

func (f *Fleet) controlConfig(log *slog.Logger, state *store.Store) (control.Config, error) {
	if err := f.readHistories(); err != nil {
		return control.Config{}, err
	}
	c := control.Config{
		Rules: f.Rules(), Replicas: f.Registry(), Listen: f.Fleet.Control.Listen, Admin: f.Fleet.Control.Admin, AdminHosts: f.Fleet.Control.AdminHosts, Mixes: new(mixes), Logger: log,
		Proxies:  f.proxyNodes(),
		Settings: resources.Settings{Listen: f.Fleet.Proxy.Listen, AccessLog: f.Fleet.Proxy.AccessLog, TraceCollector: f.Fleet.Proxy.TraceCollector, TraceShare: f.Fleet.Proxy.TraceShare, XDSCluster: f.Fleet.Control.XDSCluster, BodyLimit: f.Fleet.Proxy.BodyLimit.Bytes(), Origins: f.Fleet.Proxy.Origins},
	}
	c.Plaintext = f.Fleet.TLS.Plaintext
	if f.Fleet.TLS.ServesRequests() {
		c.Settings.ReplicaTLS = resources.ReplicaTLS{Dir: f.Fleet.TLS.EnvoyDir, TrustDomain: f.Fleet.TLS.TrustDomain}
	}
	if err := f.loadEstimator(&c.Settings); err != nil {
		return c, err
	}
	operators, err := localuser.New(f.Fleet.Control.AdminUsers)
	if err != nil {
		return c, fmt.Errorf("control.admin_users: %w", err)
	}
	c.AdmitOrder, c.UserOf = operators.Admit, localuser.Describe
	if c.ConsoleToken, err = f.consoleToken(); err != nil {
		return c, fmt.Errorf("control.console_token_file: %w", err)
	}
	l := f.Fleet.Control.Limits
	c.Limits = server.Limits{Streams: l.Streams, NodeNames: l.NodeNames, Rate: l.Rate, Nodes: l.Nodes}
	c.Groups, c.Watch = f.Fleet.Control.NodeGroups(), f.scaled(f.Fleet.Control.Soak)
	c.Name, c.Shared = f.controlPlaneName(), len(f.Fleet.Control.Peers) > 0
	if path := f.resolvePath(f.Fleet.Control.Audit); path != "" {
		if c.Audit, err = auditlog.New(auditlog.Config{Path: path, Control: c.Name, Logger: log}); err != nil {
			return c, fmt.Errorf("control.audit: %w", err)
		}
	}
	c.Store = state
	return c, nil
}

// proxyNodes returns the node ids of the fleet's proxies: proxy.nodes. Without them and
// without identities it is those that proxies on this host have by default.
func (f *Fleet) proxyNodes() []string {
	if len(f.Proxy.Nodes) > 0 || f.Fleet.TLS.TrustDomain != "" {
		return f.Proxy.Nodes
	}
	return []string{DefaultNodeID("proxy"), DefaultNodeID("envoy")}
}

// DefaultNodeID returns the default name of a node on this host.
func DefaultNodeID(kind string) string {
	host, err := os.Hostname()
	if err != nil {
		return kind
	}
	return kind + "@" + host
}

// ControlPlanes returns the addresses of all control planes of the fleet, that of
// control.listen first.
func (f *Fleet) ControlPlanes() []string {
	all := []string{f.Fleet.Control.Listen}
	for _, p := range f.Fleet.Control.Peers {
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// OwnControlPlanes returns where the fleet's own components reach the control planes: control.socket, as unix:/PATH,
// else ControlPlanes.
func (f *Fleet) OwnControlPlanes() []string {
	if path := f.Fleet.Control.Socket; path != "" {
		return []string{"unix:" + path}
	}
	return f.ControlPlanes()
}

// ListenLocal opens control.socket for the fleet's own components; nil if the fleet has none.
func (f *Fleet) ListenLocal(log *slog.Logger) (net.Listener, error) {
	c := f.Fleet.Control
	if c.Socket == "" {
		return nil, nil
	}
	users, err := f.ownUsers()
	if err != nil {
		return nil, err
	}
	l, err := listenAt(c.Socket, users, func(err error) {
		log.Warn("client of control.socket refused; add its user to control.socket_users if it is a migrator or proxy of the fleet", "error", err)
	})
	if err != nil {
		return nil, fmt.Errorf("control.socket: %w; set it to a path in a folder of the control plane's user", err)
	}
	return l, nil
}

// ownUsers are the users whose processes are the fleet's own components on this host.
func (f *Fleet) ownUsers() (*localuser.Policy, error) {
	users, err := localuser.New(append(slices.Clone(f.Fleet.Control.SocketUsers), strconv.Itoa(os.Geteuid())))
	if err != nil {
		return nil, fmt.Errorf("control.socket_users: %w", err)
	}
	return users, nil
}

func listenAt(path string, users *localuser.Policy, refused func(error)) (net.Listener, error) {
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return users.Listen(path, refused)
}

// controlPlaneName returns the name of a control plane: control.name, else the
// address that it listens on, with the host's name in place of an address that
// does not identify the host.
func (f *Fleet) controlPlaneName() string {
	if f.Fleet.Control.Name != "" {
		return f.Fleet.Control.Name
	}
	host, port, err := net.SplitHostPort(f.Fleet.Control.Listen)
	if ip, bad := netip.ParseAddr(host); err == nil && (bad != nil || ip.IsLoopback() || ip.IsUnspecified()) {
		if own, err := os.Hostname(); err == nil {
			return net.JoinHostPort(own, port)
		}
	}
	return f.Fleet.Control.Listen
}

// Frontend returns the Config of a replica's front end, without listeners.
func (f *Fleet) Frontend(r config.Replica, log *slog.Logger) frontend.Config {
	m, _ := f.Model(r.Model)
	return frontend.Config{
		Replica: policies.ReplicaID(r.ID), Engine: r.Engine, Edges: f.Edges(m), FlowTau: f.scaled(f.Planner.Window), KVTokens: f.capacity(r).KV,
		KVStated: r.KVTokens > 0 || m.KVTokens > 0, Model: m.Name, Context: m.Context,
		Cost: f.profile(r).TensorParallel(r.TP).Cost(), Overload: f.overload(r), Logger: log,
		Handoff: f.Migration.Mode == config.MigrationLive, MaxBody: f.Fleet.Proxy.BodyLimit.Bytes(), MaxBodies: f.Fleet.Proxy.BodyLimit.FrontEndBytes(), BodyRate: config.BodyRate,
	}
}

// overload returns which requests a front end refuses because they would wait for too long.
func (f *Fleet) overload(r config.Replica) frontend.Overload {
	o := f.Fleet.Overload
	out := frontend.Overload{Off: o.Admission == config.AdmissionOff, Slowdown: o.Slowdown, Batch: f.capacity(r).Batch, TenantHeader: o.TenantHeader,
		Tenants: make(map[string]admission.Tenant, len(o.Tenants))}
	for _, t := range o.Tenants {
		out.Tenants[t.Name] = admission.Tenant{Weight: t.Weight, Level: t.Priority}
	}
	return out
}

// Engine returns the Config of an emulated engine, without the vocabulary, which
// several engines may share.
func (f *Fleet) Engine(r config.Replica, log *slog.Logger) emulator.Config {
	m, _ := f.Model(r.Model)
	// The profiles already run at the fleet's speed.
	c := emulator.Config{
		Model: m.Name, Adapters: f.AdaptersOf(r), Profile: f.profile(r), TensorParallel: r.TP,
		KVTokens: r.KVTokens, MaxBatch: r.Batch, Context: m.Context, Logger: log,
	}
	if e := r.KVEvents; e.Enabled() {
		c.KVEvents = &emulator.KVEvents{Enable: true, Endpoint: e.Endpoint, ReplayEndpoint: e.ReplayEndpoint, Topic: e.Topic}
	}
	return c
}
