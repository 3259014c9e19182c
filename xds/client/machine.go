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
