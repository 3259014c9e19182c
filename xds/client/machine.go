package client

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"
)

// machine is the client's side of the delta protocol as a pure state machine:
// responses and time go in, requests come out. It is not safe for concurrent
// use and reads no clock.
//
// Invariants:
//  1. held has only resources that were decoded without error,
//  2. active has only clusters and listeners that are, or were when they became
//     active, complete: an edited one stays as it was until the edit is complete,
//  3. wanted by name is exactly what held and active refer to, and what is claimed.
type machine struct {
	node *corev3.Node
	// claimed are the extensions that are wanted whatever listeners say; check
	// says why one cannot be taken.
	claimed map[string]bool
	check   func(name string, typed *anypb.Any) error
	subs    [kinds]*subscription

	activeClusters  map[string]*Cluster
	activeListeners map[string]*Listener

	connected bool
	nodeSent  bool      // on this stream
	cdsBy     time.Time // when to ask for listeners without having clusters
	cdsSeen   bool
	ldsAsked  bool // ever
	dirty     bool // the snapshot changed since it was taken
}

// subscription is the state of one kind.
type subscription struct {
	kind    kind
	held    map[string]resource
	wanted  map[string]bool      // by name only
	missing map[string]time.Time // wanted, never answered: when to go on without; zero = never
	given   map[string]bool      // waited for in vain
	owed    []*discoveryv3.DeltaDiscoveryRequest
}

type resource struct {
	version string
	value   any
}

func newMachine(node *corev3.Node) *machine {
	m := &machine{node: node, activeClusters: map[string]*Cluster{}, activeListeners: map[string]*Listener{}, dirty: true}
	for k := range kinds {
		m.subs[k] = &subscription{kind: k, held: map[string]resource{}, wanted: map[string]bool{}, missing: map[string]time.Time{}, given: map[string]bool{}}
	}
	return m
}

// claim subscribes to extension configs for as long as the machine lives. It
// comes before connect.
func (m *machine) claim(names []string, check func(string, *anypb.Any) error) {
	m.claimed, m.check = make(map[string]bool, len(names)), check
	for _, name := range names {
		m.claimed[name] = true
		m.subs[extensions].wanted[name] = true
	}
}

// connect begins a new stream. It tells the server what the client holds, so
// that nothing is sent again.
func (m *machine) connect(now time.Time) []*discoveryv3.DeltaDiscoveryRequest {
	m.connected, m.nodeSent = true, false
	if m.cdsBy.IsZero() {
		m.cdsBy = now.Add(DefaultFetchTimeout)
	}
	var out []*discoveryv3.DeltaDiscoveryRequest
	for _, s := range m.subs {
		s.owed = nil // nonces belong to a stream
		if s.kind == listeners && !m.ldsAsked || !s.kind.spec().wildcard && len(s.wanted) == 0 {
			continue
		}
		r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: s.kind.spec().url, ResourceNamesSubscribe: slices.Sorted(maps.Keys(s.wanted))}
		for name, res := range s.held {
			if r.InitialResourceVersions == nil {
				r.InitialResourceVersions = make(map[string]string, len(s.held))
			}
			r.InitialResourceVersions[name] = res.version
		}
		out = append(out, r)
	}
	return m.sign(out)
}

// disconnect ends the stream. Everything held goes on serving.
func (m *machine) disconnect() { m.connected = false }

// sign puts the node into the first request of a stream.
func (m *machine) sign(out []*discoveryv3.DeltaDiscoveryRequest) []*discoveryv3.DeltaDiscoveryRequest {
	if len(out) > 0 && !m.nodeSent {
		out[0].Node, m.nodeSent = m.node, true
	}
	return out
}

// receive takes a response and returns what to send: new subscriptions first,
// then the ACK or NACK, as Envoy does. The error repeats the NACK's text.
func (m *machine) receive(now time.Time, r *discoveryv3.DeltaDiscoveryResponse) ([]*discoveryv3.DeltaDiscoveryRequest, error) {
	k, ok := kindOf(r.GetTypeUrl())
	if !ok {
		return nil, fmt.Errorf("response of type %q: nobody asked for it", r.GetTypeUrl())
	}
	s := m.subs[k]
	var faults []error
	seen := make(map[string]bool, len(r.GetResources()))
	for _, res := range r.GetResources() {
		name := res.GetName()
		if seen[name] {
			faults = append(faults, fmt.Errorf("%s: twice in one response", name))
			continue
		}
		seen[name] = true
		if err := m.accept(s, name, res.GetVersion(), res.GetResource()); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", name, err))
		}
	}
	for _, name := range r.GetRemovedResources() {
		if _, held := s.held[name]; held && k.spec().removable {
			delete(s.held, name)
			m.dirty = true
		}
	}
	m.cdsSeen = m.cdsSeen || k == clusters
	s.owed = append(s.owed, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: k.spec().url, ResponseNonce: r.GetNonce(), ErrorDetail: detail(k, faults)})
	return m.settle(now), errors.Join(faults...)
}

// accept decodes and stores one resource, or says why not and keeps the old.
func (m *machine) accept(s *subscription, name, version string, a *anypb.Any) error {
	if !s.kind.spec().wildcard && !s.wanted[name] {
		return nil // unsubscribed while the response was under way
	}
	if a == nil {
		return nil // a heartbeat: unchanged
	}
	if a.GetTypeUrl() != s.kind.spec().url {
		return fmt.Errorf("holds a %q", a.GetTypeUrl())
	}
	decode := s.kind.spec().decode
	if s.kind == extensions && m.claimed[name] {
		decode = m.decodeSlotted
	}
	value, err := decode(name, a)
	if err != nil {
		return err
	}
	if e, ok := value.(*Extension); ok {
		if err := m.fits(e); err != nil {
			return err
		}
	}
	stamp(value, version)
	s.held[name] = resource{version, value}
	delete(s.missing, name)
	delete(s.given, name)
	m.dirty = true
	return nil
}

// fits checks an extension against the slots it is for.
func (m *machine) fits(e *Extension) error {
	for l := range m.everyListener() {
		for _, slot := range l.Slots {
			if slot.Name == e.Name {
				if err := slot.accepts(e.Type); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// maxDetail bounds the text of a NACK, in bytes.
const maxDetail = 2048

// detail is a NACK's reason, nil for an ACK. The code is Envoy's.
func detail(k kind, faults []error) *statuspb.Status {
	if len(faults) == 0 {
		return nil
	}
	text := make([]string, len(faults))
	for i, err := range faults {
		text[i] = err.Error()
	}
	msg := k.String() + ": " + strings.Join(text, "; ")
	if len(msg) > maxDetail {
		msg = strings.ToValidUTF8(msg[:maxDetail], "") + "…"
	}
	return &statuspb.Status{Code: int32(codes.Internal), Message: strings.ToValidUTF8(msg, "\uFFFD")}
}

// tick gives up on what is overdue.
func (m *machine) tick(now time.Time) []*discoveryv3.DeltaDiscoveryRequest { return m.settle(now) }

// deadline is when tick has something to do; zero when it has not.
func (m *machine) deadline() time.Time {
	var next time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for _, s := range m.subs {
		for _, t := range s.missing {
			earlier(t)
		}
	}
	if !m.ldsAsked {
		earlier(m.cdsBy)
	}
	return next
}

// settle restores the invariants after a change: it gives up on what is
// overdue, activates what is complete, and asks for what is referred to.
func (m *machine) settle(now time.Time) []*discoveryv3.DeltaDiscoveryRequest {
	for _, s := range m.subs {
		for name, by := range s.missing {
			if !by.IsZero() && !now.Before(by) {
				delete(s.missing, name)
				s.given[name] = true
				m.dirty = true
			}
		}
	}
	warming := m.activateClusters()
	m.activateListeners()

	var out []*discoveryv3.DeltaDiscoveryRequest
	for _, k := range []kind{assignments, routes, extensions} {
		out = m.subscribe(now, k, out)
	}
	if !m.ldsAsked && m.connected && (m.cdsSeen && !warming || !now.Before(m.cdsBy)) {
		m.ldsAsked = true
		out = append(out, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: listeners.spec().url})
	}
	for _, s := range m.subs {
		// A cluster that warms holds back the answer about clusters: a missing
		// ACK means "not ready", and the publisher's flip waits for it.
		if s.kind == clusters && warming {
			continue
		}
		out = append(out, s.owed...)
		s.owed = nil
	}
	if !m.connected {
		return nil // connect says it all again
	}
	return m.sign(out)
}

// activateClusters reports whether any cluster still warms.
func (m *machine) activateClusters() (warming bool) {
	s, eds := m.subs[clusters], m.subs[assignments]
	for name, r := range s.held {
		c := r.value.(*Cluster)
		if c.Inline == nil && !eds.answered(c.Service) {
			warming = true
			continue
		}
		if m.activeClusters[name] != c {
			m.activeClusters[name] = c
			m.dirty = true
		}
	}
	for name := range m.activeClusters {
		if _, held := s.held[name]; !held {
			delete(m.activeClusters, name)
			m.dirty = true
		}
	}
	return warming
}

func (m *machine) activateListeners() {
	s := m.subs[listeners]
	for name, r := range s.held {
		l := r.value.(*Listener)
		if !m.complete(l) {
			continue
		}
		if m.activeListeners[name] != l {
			m.activeListeners[name] = l
			m.dirty = true
		}
	}
	for name := range m.activeListeners {
		if _, held := s.held[name]; !held {
			delete(m.activeListeners, name)
			m.dirty = true
		}
	}
}

// complete says whether a listener has all it needs, or has waited enough.
func (m *machine) complete(l *Listener) bool {
	if l.RouteTable != "" && l.Inline == nil && !m.subs[routes].answered(l.RouteTable) {
		return false
	}
	for _, slot := range l.Slots {
		if !(slot.Default != nil && slot.NoWait) && !m.subs[extensions].answered(slot.Name) {
			return false
		}
	}
	return true
}

// answered reports whether a resource is here or will not be waited for.
func (s *subscription) answered(name string) bool {
	_, held := s.held[name]
	return held || s.given[name]
}

// everyListener ranges over the listeners that are held or active.
func (m *machine) everyListener() func(func(*Listener) bool) {
	return func(yield func(*Listener) bool) {
		for _, r := range m.subs[listeners].held {
			if !yield(r.value.(*Listener)) {
				return
			}
		}
		for _, l := range m.activeListeners {
			if !yield(l) {
				return
			}
		}
	}
}

// references collects the names of kind k that held and active resources
// refer to, each with how long it may be missing.
func (m *machine) references(k kind) map[string]time.Duration {
	names := make(map[string]time.Duration)
	if k == assignments {
		for _, r := range m.subs[clusters].held {
			if c := r.value.(*Cluster); c.Inline == nil {
				names[c.Service] = c.fetchTimeout
			}
		}
		for _, c := range m.activeClusters {
			if c.Inline == nil {
				names[c.Service] = c.fetchTimeout
			}
		}
		return names
	}
	for l := range m.everyListener() {
		if k == routes && l.RouteTable != "" {
			names[l.RouteTable] = l.fetchTimeout
		}
		for _, slot := range l.Slots {
			if k == extensions {
				names[slot.Name] = slot.fetchTimeout
			}
		}
	}
	if k == extensions {
		for name := range m.claimed {
			names[name] = 0 // nothing waits for it
		}
	}
	return names
}

// subscribe appends the request that makes wanted equal to references.
func (m *machine) subscribe(now time.Time, k kind, out []*discoveryv3.DeltaDiscoveryRequest) []*discoveryv3.DeltaDiscoveryRequest {
	s, names := m.subs[k], m.references(k)
	r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: k.spec().url}
	for name, timeout := range names {
		if s.wanted[name] {
			continue
		}
		s.wanted[name] = true
		s.missing[name] = time.Time{}
		if timeout > 0 {
			s.missing[name] = now.Add(timeout)
		}
		r.ResourceNamesSubscribe = append(r.ResourceNamesSubscribe, name)
	}
	for name := range s.wanted {
		if _, refers := names[name]; refers {
			continue
		}
		delete(s.wanted, name)
		delete(s.held, name)
		delete(s.missing, name)
		delete(s.given, name)
		m.dirty = true
		r.ResourceNamesUnsubscribe = append(r.ResourceNamesUnsubscribe, name)
	}
	if len(r.ResourceNamesSubscribe) == 0 && len(r.ResourceNamesUnsubscribe) == 0 {
		return out
	}
	slices.SortFunc(r.ResourceNamesSubscribe, cmp.Compare[string])
	slices.SortFunc(r.ResourceNamesUnsubscribe, cmp.Compare[string])
	return append(out, r)
}

// snapshot returns the present tables, or nil when nothing changed since the
// last call.
func (m *machine) snapshot() *Snapshot {
	if !m.dirty {
		return nil
	}
	m.dirty = false
	return &Snapshot{
		Listeners:   maps.Clone(m.activeListeners),
		Clusters:    maps.Clone(m.activeClusters),
		Routes:      values[*RouteTable](m.subs[routes]),
		Assignments: values[*Assignment](m.subs[assignments]),
		Extensions:  values[*Extension](m.subs[extensions]),
		Slots:       values[*Slotted](m.subs[extensions]),
	}
}

// values copies the decoded resources of one kind that are of a type.
func values[T any](s *subscription) map[string]T {
	out := make(map[string]T, len(s.held))
	for name, r := range s.held {
		if v, ok := r.value.(T); ok {
			out[name] = v
		}
	}
	return out
}
