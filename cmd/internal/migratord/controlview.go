package migratord

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/migrator/market"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// controlView is what the control plane reports: the plan and the peers over
// xDS; the stage's mean load, drains and refinements in the replies to load
// reports.
type controlView struct {
	mu    sync.Mutex
	view  market.View
	peers map[policies.ReplicaID]policies.Replica
	plans []policies.Plan // of all models, as last published
	// drained says that the replica empties itself (Daemon.Drain), whatever the control plane says.
	drained bool
}

// Plans returns the plans of all models that the daemon follows.
func (d *Daemon) Plans() []policies.Plan {
	d.controlView.mu.Lock()
	defer d.controlView.mu.Unlock()
	return d.controlView.plans
}

// peer returns a replica of the model; the zero value if it is unknown.
func (o *controlView) peer(id policies.ReplicaID) policies.Replica {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.peers[id]
}

// address returns the peer address of a replica; "" if unknown.
func (o *controlView) address(id policies.ReplicaID) string { return o.peer(id).Peer }

// host returns the host of a replica; "" if unknown.
func (o *controlView) host(id policies.ReplicaID) string { return o.peer(id).Host }

// peerIDs returns the replicas of the model, in any order.
func (o *controlView) peerIDs() []policies.ReplicaID {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.peers))
}

// owner returns the replica with a peer address; "" if unknown.
func (o *controlView) owner(address string) policies.ReplicaID {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, r := range o.peers {
		if r.Peer == address {
			return id
		}
	}
	return ""
}

// snapshotWatcher receives the control plane's snapshots.
type snapshotWatcher struct {
	d     *Daemon
	slots *policyhost.Follower // nil if the daemon has no slots of its own
}

// Update implements routing.Watcher. A plan without the replica's model leaves the previous one in
// force.
func (w snapshotWatcher) Update(s *routing.Snapshot) {
	d := w.d
	if w.slots != nil {
		w.slots.Update(s)
	}
	if s.Plan() == nil {
		return
	}
	d.controlView.mu.Lock()
	d.controlView.plans = s.Routing.Plans()
	d.controlView.mu.Unlock()
	m := s.Routing.ByName(d.model)
	if m == nil {
		return
	}
	mine := make([]policies.Replica, len(m.Replicas))
	peers, addresses := make(map[policies.ReplicaID]policies.Replica), make(map[policies.ReplicaID]string)
	for i, r := range m.Replicas {
		mine[i] = r.Replica
		peers[r.ID], addresses[r.ID] = r.Replica, r.Peer
	}
	delete(addresses, d.id)
	d.network.SetPeers(addresses)
	d.updateView(func(v *market.View) { v.Plan, v.Peers, d.controlView.peers = m.Plan, mine, peers })
}

// updateView changes the view and gives it to the market, under the lock, so that an older view
// cannot overwrite it.
func (d *Daemon) updateView(change func(*market.View)) {
	if d.market == nil {
		return
	}
	o := &d.controlView
	o.mu.Lock()
	defer o.mu.Unlock()
	change(&o.view)
	o.view.Draining = o.view.Draining || o.drained
	d.market.SetView(o.view)
}

// update returns the part of the view that a preceding process needs, because it receives no
// replies. It is sent again and again: a mean that is old is not sent as a new one.
func (o *controlView) update() controlUpdate {
	o.mu.Lock()
	defer o.mu.Unlock()
	const maxAge = time.Duration(place.MaxAge) * time.Microsecond
	return controlUpdate{Drain: o.view.Draining, StageMean: o.view.StageMean, MeanKnown: time.Since(o.view.MeanAt) <= maxAge}
}

// applyControlUpdate applies an update from the later process. Only a process that has handed over
// receives it.
func (d *Daemon) applyControlUpdate(x controlUpdate) {
	d.updateView(func(v *market.View) {
		v.Draining, v.StageMean, v.MeanAt = x.Drain, x.StageMean, time.Time{}
		if x.MeanKnown {
			v.MeanAt = time.Now()
		}
	})
}

// handleReply applies a reply to a load report.
func (d *Daemon) handleReply(r *api.LoadReply) {
	d.updateView(func(v *market.View) {
		v.StageMean, v.MeanAt = policies.Tokens(r.GetStageMeanHeld()), time.Now()
		v.Draining, v.Refine, v.PrefillRanges = r.GetDrain(), r.GetRefine(), decodePrefillRanges(r.GetPrefillRanges())
	})
}

// maxPrefillRanges bounds LoadReply.prefill_ranges.
const maxPrefillRanges = 64

// decodePrefillRanges decodes LoadReply.prefill_ranges. It returns nil, with which all prefill
// replicas are for all prompts, if there are too many ranges or one is none.
func decodePrefillRanges(in []*api.PrefillRange) []policies.PrefillRange {
	if len(in) == 0 || len(in) > maxPrefillRanges {
		return nil
	}
	out := make([]policies.PrefillRange, 0, len(in))
	for _, x := range in {
		r := policies.PrefillRange{Replica: policies.ReplicaID(x.GetReplica()), Low: policies.Tokens(x.GetLow()), High: policies.Tokens(x.GetHigh())}
		if r.High == 0 {
			r.High = policies.Unbounded
		}
		if r.Low < 0 || r.High <= r.Low {
			return nil
		}
		out = append(out, r)
	}
	return out
}
