package client

import (
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/cascadeinfer/cascade/xds/resources"
)

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
		if m.needsEndpoints(c) && !eds.answered(c.EDSName) {
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

// needsEndpoints reports whether a cluster waits for an assignment. A client that routes nothing
// reads plans from the clusters without keys, and those with keys have the same endpoints: it
// spares the control plane half of them.
func (m *machine) needsEndpoints(c *Cluster) bool {
	return c.Inline == nil && !(c.HashKeys && m.node.GetCluster() == resources.ObserverCluster)
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
			if c := r.value.(*Cluster); m.needsEndpoints(c) {
				names[c.EDSName] = c.fetchTimeout
			}
		}
		for _, c := range m.activeClusters {
			if m.needsEndpoints(c) {
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
