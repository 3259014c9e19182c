package resources

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// View is the input of Build.
//
// Invariants, checked by Build:
//  1. models have distinct non-empty names and a positive context, and no host
//     belongs to two of them,
//  2. every model has exactly one valid plan in Plans, and Plans and Previous
//     name no other model,
//  3. every model has an endpoint; endpoint ids are distinct, and so are
//     addresses, which are IP:port.
type View struct {
	Models []Model
	Plans  []policies.Plan
	// Previous are plans by which some proxies may still route. While they are present, a
	// stage holds the members that any of the plans gives it, so that a proxy finds the
	// right replicas whichever routes it has.
	Previous  []policies.Plan
	Endpoints []Endpoint
	// Edge is the certificate that proxies present to clients; present if and only if
	// Settings.EdgeTLS is set.
	Edge     *Certificate
	Settings Settings
}

// PlanOf returns the plan of a model; false if there is none; a valid view has one.
func (v View) PlanOf(model string) (policies.Plan, bool) {
	for _, p := range v.Plans {
		if p.Model == model {
			return p, true
		}
	}
	return policies.Plan{}, false
}

// Model is one model that the fleet serves.
type Model struct {
	Name    string          // as in requests
	Context policies.Tokens // the longest sequence it accepts
	// Hosts are the host names that select this model and no other. In a fleet with a single
	// model every host name does.
	Hosts []string
	// BytesPerToken converts a body's bytes to tokens. The fleet learns it; it is clamped to
	// the bounds of package length, and 0 means the default.
	BytesPerToken length.Ratio
}

// Health is what the control plane knows of an endpoint.
type Health uint8

const (
	Healthy   Health = iota
	Draining         // accepts no new requests, finishes the running ones
	Unhealthy        // it does not respond, or its engine is not ready
)

// String names the health in lower case.
func (h Health) String() string {
	switch h {
	case Healthy:
		return "healthy"
	case Draining:
		return "draining"
	case Unhealthy:
		return "unhealthy"
	}
	return "health " + strconv.Itoa(int(h))
}

// Endpoint is one replica's front end, as a proxy sees it.
type Endpoint struct {
	// Replica has an IP:port as its Address, and the locality's zone as its Host. Peer and
	// Capacity are metadata for other migrators. A replica that computes prompts for others
	// gets requests of clients only when no other replica is left. Draining counts for nothing: see Health.
	policies.Replica
	Weight uint32 // relative share of new requests; 0 means 1
	Health Health
}

// Estimator says how the length of a request is determined.
type Estimator string

const (
	// ContentLength uses only the body's size: no callout, no body read.
	ContentLength Estimator = "content-length"
	// ExtProc calls the length service, which determines model and length from the headers
	// if possible and from the body otherwise; if the service is down, content-length is
	// used.
	ExtProc Estimator = "ext_proc"
	// Wasm runs Settings.Module in the proxy, with the results of the length service; if
	// the proxy cannot run it, content-length is used.
	Wasm Estimator = "wasm"
)

// Settings are the parts of the resources that do not depend on plans. All except
// Estimator are part of the listener or of clusters, which proxies keep for their whole
// life: changing them in a running fleet ends streams, so Cascade applies them only at
// start.
type Settings struct {
	Listen        string           // IP:port of the listener; "" means 127.0.0.1:10000, port 0 any free one
	Estimator     Estimator        // "" means ContentLength
	LengthService string           // IP:port of the ext_proc service; required by ExtProc
	Module        *EstimatorModule // the module of Wasm; required by it
	// BodyLimit is the largest request body that a proxy keeps, in bytes, for an estimator that must
	// read it and for a retry. Routes have it: the limits of a listener also count for answers. 0
	// means length.BodyLimit.
	BodyLimit int64
	// Origins are the web origins whose pages may call the fleet (CORS), such as
	// https://app.example, or AnyOrigin alone; none: the fleet says nothing of origins.
	Origins []string
	// LengthTimeout bounds one response of the ext_proc service; after it the request
	// continues without an estimate. 0 means 200 ms.
	LengthTimeout time.Duration
	// IdleTimeout ends a stream without traffic. It must exceed the longest wait for a first
	// token. 0 means 15 min.
	IdleTimeout time.Duration
	// ConnectTimeout bounds a connection attempt to a replica, after which another one is
	// tried. 0 means 1 s.
	ConnectTimeout time.Duration
	// PingTimeout bounds the answer of a replica or of the length service to a ping, after
	// which the connection is closed with its streams. 0 means 5 s.
	PingTimeout time.Duration
	// MaxRequests bounds the concurrent requests of a stage per proxy, and the
	// streams of a connection to a replica. 0 means 65,536; below 10,000 is refused.
	MaxRequests uint32
	// ReplicaTLS is the TLS of Envoys and embedded proxies with replicas; gRPC clients have no such clusters.
	ReplicaTLS ReplicaTLS
	// EdgeTLS enables TLS on the listener, with the view's certificate.
	EdgeTLS   bool
	AccessLog string // file for JSON access logs, "" for none
	// XDSCluster is the name of this control plane's cluster in Envoys of other owners; see
	// SplitRouteName. "" means "cascade-xds".
	XDSCluster     string
	TraceCollector string  // IP:port of an OpenTelemetry collector (gRPC), "" for none
	TraceShare     float64 // share of requests traced, in (0, 1]; 0 means 0.01
}

// Defaults of Settings.
const (
	defaultListen         = "127.0.0.1:10000"
	defaultLengthTimeout  = 200 * time.Millisecond
	defaultIdleTimeout    = 15 * time.Minute
	defaultConnectTimeout = time.Second
	// A busy host may take seconds to answer.
	defaultPingTimeout = 5 * time.Second
	defaultMaxRequests = 65536
	minMaxRequests     = 10000
	defaultTraceShare  = 0.01
)

// bodyLimit returns the limit as routes carry it.
func (s Settings) bodyLimit() *wrapperspb.UInt64Value { return wrapperspb.UInt64(uint64(s.BodyLimit)) }

// complete fills in the defaults.
func (s Settings) complete() Settings {
	s.Listen = cmp.Or(s.Listen, defaultListen)
	s.Estimator = cmp.Or(s.Estimator, ContentLength)
	s.BodyLimit = cmp.Or(s.BodyLimit, length.BodyLimit)
	s.LengthTimeout = cmp.Or(s.LengthTimeout, defaultLengthTimeout)
	s.IdleTimeout = cmp.Or(s.IdleTimeout, defaultIdleTimeout)
	s.ConnectTimeout = cmp.Or(s.ConnectTimeout, defaultConnectTimeout)
	s.PingTimeout = cmp.Or(s.PingTimeout, defaultPingTimeout)
	s.MaxRequests = cmp.Or(s.MaxRequests, defaultMaxRequests)
	s.TraceShare = cmp.Or(s.TraceShare, defaultTraceShare)
	return s
}

// validate reports the first bad setting of completed settings.
func (s Settings) validate() error {
	if _, err := netip.ParseAddrPort(s.Listen); err != nil {
		return fmt.Errorf("listen %q: give an IP address and a port, such as 127.0.0.1:10000", s.Listen)
	}
	switch s.Estimator {
	case ContentLength:
	case ExtProc:
		if s.LengthService == "" {
			return fmt.Errorf("estimator %s: give the length service's address", s.Estimator)
		}
	case Wasm:
		if s.Module == nil {
			return fmt.Errorf("estimator %s: give its module", s.Estimator)
		}
	default:
		return fmt.Errorf("estimator %q: want %q, %q or %q", s.Estimator, ContentLength, ExtProc, Wasm)
	}
	if s.Module != nil && s.Estimator != Wasm {
		return fmt.Errorf("estimator %s: remove the module, which only estimator %s runs", s.Estimator, Wasm)
	}
	if s.BodyLimit < 0 || s.Module != nil && s.Module.bodyLimit != s.BodyLimit {
		return fmt.Errorf("body limit %d: must be positive, and that of the module", s.BodyLimit)
	}
	if err := validateOrigins(s.Origins); err != nil {
		return err
	}
	for _, a := range [...]struct{ what, address string }{{"length service", s.LengthService}, {"trace collector", s.TraceCollector}} {
		if a.address == "" {
			continue
		}
		if _, err := hostPort(a.address); err != nil {
			return fmt.Errorf("%s: %w", a.what, err)
		}
	}
	for _, d := range [...]struct {
		what string
		d    time.Duration
	}{{"length timeout", s.LengthTimeout}, {"idle timeout", s.IdleTimeout}, {"connect timeout", s.ConnectTimeout}, {"ping timeout", s.PingTimeout}} {
		if d.d < time.Millisecond {
			return fmt.Errorf("%s %v: must be at least 1ms", d.what, d.d)
		}
	}
	if s.MaxRequests < minMaxRequests {
		return fmt.Errorf("max requests %d: must be at least %d, or a stage refuses streams that its replicas can take", s.MaxRequests, minMaxRequests)
	}
	if !(s.TraceShare > 0 && s.TraceShare <= 1) {
		return fmt.Errorf("trace share %v: must be in (0, 1]", s.TraceShare)
	}
	return nil
}

// hostPort parses an address for a proxy's configuration. A host name would need a
// resolver, and port 0 cannot be reached.
func hostPort(address string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(address)
	if err != nil || a.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("address %q: give an IP address and a port, such as 10.0.0.7:8000", address)
	}
	return a, nil
}

// complete returns the view in the order of rendering, with the defaults filled in. It
// does not change the caller's slices.
func (v View) complete() View {
	v.Settings = v.Settings.complete()
	v.Models = slices.Clone(v.Models)
	for i := range v.Models {
		v.Models[i].BytesPerToken = v.Models[i].BytesPerToken.Clamp()
		v.Models[i].Hosts = slices.Clone(v.Models[i].Hosts)
		slices.Sort(v.Models[i].Hosts)
	}
	slices.SortFunc(v.Models, func(a, b Model) int { return strings.Compare(a.Name, b.Name) })
	v.Endpoints = slices.Clone(v.Endpoints)
	for i := range v.Endpoints {
		v.Endpoints[i].Weight = max(v.Endpoints[i].Weight, 1)
	}
	slices.SortFunc(v.Endpoints, func(a, b Endpoint) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return v
}

// validate reports the first broken invariant of a completed view.
func (v View) validate() error {
	if err := v.Settings.validate(); err != nil {
		return err
	}
	if err := v.validateEdge(); err != nil {
		return err
	}
	if len(v.Models) == 0 {
		return fmt.Errorf("no model: a fleet serves at least one")
	}
	context := make(map[string]policies.Tokens, len(v.Models))
	hosts := make(map[string]string)
	for _, m := range v.Models {
		switch {
		case m.Name == "":
			return fmt.Errorf("a model has no name")
		case m.Name == "*" || strings.ContainsAny(m.Name, "\x00\r\n"):
			return fmt.Errorf("model %q: a name must fit into a header", m.Name)
		case context[m.Name] != 0:
			return fmt.Errorf("model %q occurs twice", m.Name)
		case m.Context <= 0:
			return fmt.Errorf("model %q: context %d must be positive", m.Name, m.Context)
		}
		context[m.Name] = m.Context
		for _, h := range m.Hosts {
			h = strings.ToLower(h)
			if h == "" || h == "*" || strings.ContainsAny(h, " /\r\n\x00") {
				return fmt.Errorf("model %q: host %q is not a host name", m.Name, h)
			}
			if other, ok := hosts[h]; ok {
				return fmt.Errorf("host %q belongs to %q and %q: a host name that selects a model selects one", h, other, m.Name)
			}
			hosts[h] = m.Name
		}
	}
	planned := make(map[string]bool, len(v.Plans))
	for i, p := range slices.Concat(v.Plans, v.Previous) {
		if err := p.Validate(); err != nil {
			return err
		}
		if context[p.Model] == 0 {
			return fmt.Errorf("plan of %q: no such model", p.Model)
		}
		if i < len(v.Plans) {
			if planned[p.Model] {
				return fmt.Errorf("model %q has two plans", p.Model)
			}
			planned[p.Model] = true
		}
	}
	served := make(map[string]bool, len(v.Models))
	ids := make(map[policies.ReplicaID]bool, len(v.Endpoints))
	addresses := make(map[netip.AddrPort]policies.ReplicaID, len(v.Endpoints))
	for _, e := range v.Endpoints {
		a, err := hostPort(e.Address)
		switch {
		case e.ID == "":
			return fmt.Errorf("endpoint %s has no id", e.Address)
		case ids[e.ID]:
			return fmt.Errorf("endpoint %q occurs twice", e.ID)
		case err != nil:
			return fmt.Errorf("endpoint %q: %w", e.ID, err)
		case addresses[a] != "":
			return fmt.Errorf("endpoints %q and %q have the same address %s", addresses[a], e.ID, e.Address)
		case context[e.Model] == 0:
			return fmt.Errorf("endpoint %q: no model %q", e.ID, e.Model)
		case e.Capacity != policies.Capacity{} && e.Capacity.Validate() != nil:
			return fmt.Errorf("endpoint %q: %w", e.ID, e.Capacity.Validate())
		case e.Health > Unhealthy:
			return fmt.Errorf("endpoint %q: unknown %s", e.ID, e.Health)
		}
		ids[e.ID], addresses[a], served[e.Model] = true, e.ID, true
	}
	for _, m := range v.Models {
		if !planned[m.Name] {
			return fmt.Errorf("model %q has no plan", m.Name)
		}
		if !served[m.Name] {
			return fmt.Errorf("model %q has no endpoint", m.Name)
		}
	}
	return nil
}
