package migratord

import (
	"sync"

	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/migrator/loadreport"
	"github.com/cascadeinfer/cascade/migrator/market"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/client"
)

// controlView is what the control plane reports: the plan and the peers over
// xDS; the stage's mean load, drains and refinements in the replies to load
// reports.
type controlView struct {
	mu    sync.Mutex
	view  market.View
	peers map[policies.ReplicaID]policies.Replica
}

// address returns the peer address of a replica; "" if unknown.
func (o *controlView) address(id policies.ReplicaID) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.peers[id].Peer
}

// node returns the node of a replica; "" if unknown.
func (o *controlView) node(id policies.ReplicaID) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.peers[id].Host
}

// peerIDs returns the replicas of the model, in any order.
func (o *controlView) peerIDs() []policies.ReplicaID {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make([]policies.ReplicaID, 0, len(o.peers))
	for id := range o.peers {
		out = append(out, id)
	}
	return out
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

// snapshotWatcher receives xDS snapshots.
type snapshotWatcher struct {
	d     *Daemon
	slots *policyhost.Follower // nil if the daemon has no slots of its own
}

// Update implements client.Watcher. A snapshot without a complete plan leaves the previous plan in
// force.
func (w snapshotWatcher) Update(s *client.Snapshot) {
	d := w.d
	if w.slots != nil {
		w.slots.Update(s)
	}
	plans, err := client.ReadPlans(s)
	if err != nil {
		return // a rollout is in progress: a later snapshot completes it
	}
	var plan policies.Plan
	for _, p := range plans {
		if p.Model == d.model {
			plan = p
		}
	}
	if len(plan.Stages) == 0 {
		return
	}
	var mine []policies.Replica
	peers, addresses := make(map[policies.ReplicaID]policies.Replica), make(map[policies.ReplicaID]string)
	for _, r := range client.ReadReplicas(s) {
		if r.Model == d.model {
			mine = append(mine, r)
			peers[r.ID], addresses[r.ID] = r, r.Peer
		}
	}
	delete(addresses, d.id)
	d.network.SetPeers(addresses)
	o := &d.controlView
	o.mu.Lock()
	defer o.mu.Unlock()
	o.view.Plan, o.view.Peers, o.peers = plan, mine, peers
	d.market.SetView(o.view) // under the lock, so that an older view cannot overwrite it
}

// update returns the part of the view that a preceding process needs, because it receives no
// replies.
func (o *controlView) update() controlUpdate {
	o.mu.Lock()
	defer o.mu.Unlock()
	return controlUpdate{Drain: o.view.Draining, StageMean: o.view.StageMean, MeanKnown: o.view.MeanKnown}
}

// applyControlUpdate applies an update from the later process. Only a process that has handed over
// receives it.
func (d *Daemon) applyControlUpdate(x controlUpdate) {
	if d.market == nil {
		return
	}
	o := &d.controlView
	o.mu.Lock()
	defer o.mu.Unlock()
	o.view.Draining, o.view.StageMean, o.view.MeanKnown = x.Drain, x.StageMean, x.MeanKnown
	d.market.SetView(o.view)
}

// stepDown records that another process leads the replica from now on.
func (d *Daemon) stepDown() {
	if d.market == nil {
		return
	}
	o := &d.controlView
	o.mu.Lock()
	defer o.mu.Unlock()
	o.view.Retired, o.view.Refine = true, nil
	d.market.SetView(o.view)
}

// handleReply applies a reply to a load report.
func (d *Daemon) handleReply(r loadreport.Reply) {
	if d.market == nil {
		return
	}
	o := &d.controlView
	o.mu.Lock()
	defer o.mu.Unlock()
	o.view.StageMean, o.view.MeanKnown = policies.Tokens(r.StageMeanHeld), true
	o.view.Draining, o.view.Refine = r.Drain, r.Refine
	d.market.SetView(o.view)
}
