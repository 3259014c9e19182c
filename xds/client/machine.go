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

// machine is the client's side of the delta protocol as a pure state machine: it takes
// responses and times, and returns requests. It reads no clock and is not safe for
// concurrent use.
//
// Invariants:
//  1. held contains only resources that were decoded without error,
//  2. active contains only clusters and listeners that are complete, or were when they
//     became active: an edited one keeps its old state until the edit is complete,
//  3. wanted is exactly the set of names that held and active resources refer to, plus
//     the policy slots.
type machine struct {
	node *corev3.Node
	// slotNames are the extension configs wanted independent of listeners; checkSlot returns
	// why one must be refused.
	slotNames map[string]bool
	checkSlot func(name string, typed *anypb.Any) error
	subs      [kinds]*subscription

	activeClusters  map[string]*Cluster
	activeListeners map[string]*Listener

	connected       bool
	nodeSent        bool      // on this stream
	cdsDeadline     time.Time // when to subscribe to listeners even without clusters
	cdsSeen         bool
	ldsSubscribed   bool // ever
	snapshotChanged bool // since the last call of snapshot
}

// subscription is the state of one resource type.
type subscription struct {
	kind        kind
	held        map[string]resource
	wanted      map[string]bool      // by name only
	missing     map[string]time.Time // wanted and not received: deadline after which to continue without; zero = none
	timedOut    map[string]bool      // not received by its deadline
	pendingAcks []*discoveryv3.DeltaDiscoveryRequest
}

type resource struct {
	version string
	value   any
}

func newMachine(node *corev3.Node) *machine {
	m := &machine{node: node, activeClusters: map[string]*Cluster{}, activeListeners: map[string]*Listener{}, snapshotChanged: true}
	for k := range kinds {
		m.subs[k] = &subscription{kind: k, held: map[string]resource{}, wanted: map[string]bool{}, missing: map[string]time.Time{}, timedOut: map[string]bool{}}
	}
	return m
}

// subscribeSlots subscribes to the policy slots' configs for the life of the machine. It
// must be called before connect.
func (m *machine) subscribeSlots(names []string, check func(string, *anypb.Any) error) {
	m.slotNames, m.checkSlot = make(map[string]bool, len(names)), check
	for _, name := range names {
		m.slotNames[name] = true
		m.subs[extensions].wanted[name] = true
	}
}

// connect starts a new stream. Its requests state the held versions, so that the server
// sends nothing again.
func (m *machine) connect(now time.Time) []*discoveryv3.DeltaDiscoveryRequest {
	m.connected, m.nodeSent = true, false
	if m.cdsDeadline.IsZero() {
		m.cdsDeadline = now.Add(DefaultFetchTimeout)
	}
	var out []*discoveryv3.DeltaDiscoveryRequest
	for _, s := range m.subs {
		s.pendingAcks = nil // nonces belong to a stream
		if s.kind == listeners && !m.ldsSubscribed || !s.kind.spec().wildcard && len(s.wanted) == 0 {
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
	return m.attachNode(out)
}

// disconnect ends the stream. Held resources stay in use.
func (m *machine) disconnect() { m.connected = false }

// attachNode adds the node to the first request of a stream.
func (m *machine) attachNode(out []*discoveryv3.DeltaDiscoveryRequest) []*discoveryv3.DeltaDiscoveryRequest {
	if len(out) > 0 && !m.nodeSent {
		out[0].Node, m.nodeSent = m.node, true
	}
	return out
}

// receive handles a response and returns the requests to send: new subscriptions first,
// then the ACK or NACK, as Envoy does. The error repeats the NACK's text.
func (m *machine) receive(now time.Time, r *discoveryv3.DeltaDiscoveryResponse) ([]*discoveryv3.DeltaDiscoveryRequest, error) {
	k, ok := kindOf(r.GetTypeUrl())
	if !ok {
		return nil, fmt.Errorf("response of type %q: not subscribed", r.GetTypeUrl())
	}
	s := m.subs[k]
	var faults []error
	seen := make(map[string]bool, len(r.GetResources()))
	for _, res := range r.GetResources() {
		name := res.GetName()
		if seen[name] {
			faults = append(faults, fmt.Errorf("%s: occurs twice in one response", name))
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
			m.snapshotChanged = true
		}
	}
	m.cdsSeen = m.cdsSeen || k == clusters
	s.pendingAcks = append(s.pendingAcks, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: k.spec().url, ResponseNonce: r.GetNonce(), ErrorDetail: nackDetail(k, faults)})
	return m.settle(now), errors.Join(faults...)
}

// accept decodes and stores one resource; on an error the old one stays.
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
	if s.kind == extensions && m.slotNames[name] {
		decode = m.decodeSlotConfig
	}
	value, err := decode(name, a)
	if err != nil {
		return err
	}
	if e, ok := value.(*Extension); ok {
		if err := m.checkFilterType(e); err != nil {
			return err
		}
	}
	setVersion(value, version)
	s.held[name] = resource{version, value}
	delete(s.missing, name)
	delete(s.timedOut, name)
	m.snapshotChanged = true
	return nil
}

// checkFilterType checks an extension's type against the ECDS filters that use it.
func (m *machine) checkFilterType(e *Extension) error {
	for l := range m.allListeners() {
		for _, slot := range l.ECDSFilters {
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

// nackDetail returns a NACK's error detail, nil for an ACK. The code is Envoy's.
func nackDetail(k kind, faults []error) *statuspb.Status {
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

// tick handles expired deadlines.
func (m *machine) tick(now time.Time) []*discoveryv3.DeltaDiscoveryRequest { return m.settle(now) }

// deadline returns when tick must be called; zero if there is no deadline.
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
	if !m.ldsSubscribed {
		earlier(m.cdsDeadline)
	}
	return next
}

// settle restores the invariants after a change: it expires deadlines, activates
// complete resources, and subscribes to the resources they refer to.
func (m *machine) settle(now time.Time) []*discoveryv3.DeltaDiscoveryRequest {
	for _, s := range m.subs {
		for name, by := range s.missing {
			if !by.IsZero() && !now.Before(by) {
				delete(s.missing, name)
				s.timedOut[name] = true
				m.snapshotChanged = true
			}
		}
	}
	warming := m.activateClusters()
	m.activateListeners()

	var out []*discoveryv3.DeltaDiscoveryRequest
	for _, k := range []kind{assignments, routes, extensions} {
		out = m.subscribe(now, k, out)
	}
	if !m.ldsSubscribed && m.connected && (m.cdsSeen && !warming || !now.Before(m.cdsDeadline)) {
		m.ldsSubscribed = true
		out = append(out, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: listeners.spec().url})
	}
	for _, s := range m.subs {
		// A warming cluster holds back the ACK of the clusters: a missing ACK means "not ready",
		// and the publisher waits for it before it switches the routes.
		if s.kind == clusters && warming {
			continue
		}
		out = append(out, s.pendingAcks...)
		s.pendingAcks = nil
	}
	if !m.connected {
		return nil // connect will repeat it
	}
	return m.attachNode(out)
}

// activateClusters reports whether any cluster is still warming.
func (m *machine) activateClusters() (warming bool) {
	s, eds := m.subs[clusters], m.subs[assignments]
	for name, r := range s.held {
		c := r.value.(*Cluster)
		if c.Inline == nil && !eds.answered(c.EDSName) {
			warming = true
			continue
		}
		if m.activeClusters[name] != c {
			m.activeClusters[name] = c
			m.snapshotChanged = true
		}
	}
	for name := range m.activeClusters {
		if _, held := s.held[name]; !held {
			delete(m.activeClusters, name)
			m.snapshotChanged = true
		}
	}
	return warming
}

func (m *machine) activateListeners() {
	s := m.subs[listeners]
	for name, r := range s.held {
		l := r.value.(*Listener)
		if !m.listenerReady(l) {
			continue
		}
		if m.activeListeners[name] != l {
			m.activeListeners[name] = l
			m.snapshotChanged = true
		}
	}
	for name := range m.activeListeners {
		if _, held := s.held[name]; !held {
			delete(m.activeListeners, name)
			m.snapshotChanged = true
		}
	}
}

// listenerReady reports whether a listener has all its dependencies, or their deadlines
// have expired.
func (m *machine) listenerReady(l *Listener) bool {
	if l.RouteTable != "" && l.Inline == nil && !m.subs[routes].answered(l.RouteTable) {
		return false
	}
	for _, slot := range l.ECDSFilters {
		if !(slot.Default != nil && slot.NoWait) && !m.subs[extensions].answered(slot.Name) {
			return false
		}
	}
	return true
}

// answered reports whether a resource was received or its deadline has expired.
func (s *subscription) answered(name string) bool {
	_, held := s.held[name]
	return held || s.timedOut[name]
}

// allListeners ranges over the listeners that are held or active.
func (m *machine) allListeners() func(func(*Listener) bool) {
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

// references returns the names of type k that held and active resources refer to, with
// the time that each may be missing.
func (m *machine) references(k kind) map[string]time.Duration {
	names := make(map[string]time.Duration)
	if k == assignments {
		for _, r := range m.subs[clusters].held {
			if c := r.value.(*Cluster); c.Inline == nil {
				names[c.EDSName] = c.fetchTimeout
			}
		}
		for _, c := range m.activeClusters {
			if c.Inline == nil {
				names[c.EDSName] = c.fetchTimeout
			}
		}
		return names
	}
	for l := range m.allListeners() {
		if k == routes && l.RouteTable != "" {
			names[l.RouteTable] = l.fetchTimeout
		}
		for _, slot := range l.ECDSFilters {
			if k == extensions {
				names[slot.Name] = slot.fetchTimeout
			}
		}
	}
	if k == extensions {
		for name := range m.slotNames {
			names[name] = 0 // no resource waits for it
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
		delete(s.timedOut, name)
		m.snapshotChanged = true
		r.ResourceNamesUnsubscribe = append(r.ResourceNamesUnsubscribe, name)
	}
	if len(r.ResourceNamesSubscribe) == 0 && len(r.ResourceNamesUnsubscribe) == 0 {
		return out
	}
	slices.SortFunc(r.ResourceNamesSubscribe, cmp.Compare[string])
	slices.SortFunc(r.ResourceNamesUnsubscribe, cmp.Compare[string])
	return append(out, r)
}

// snapshot returns the present tables, or nil if nothing has changed since the last call.
func (m *machine) snapshot() *Snapshot {
	if !m.snapshotChanged {
		return nil
	}
	m.snapshotChanged = false
	return &Snapshot{
		Listeners:   maps.Clone(m.activeListeners),
		Clusters:    maps.Clone(m.activeClusters),
		Routes:      values[*RouteTable](m.subs[routes]),
		Assignments: values[*Assignment](m.subs[assignments]),
		Extensions:  values[*Extension](m.subs[extensions]),
		Slots:       values[*SlotConfig](m.subs[extensions]),
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
