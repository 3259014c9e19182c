package peer

import (
	"cmp"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Refused counts envelopes that were not passed on, by reason.
type Refused struct {
	UnknownPeer  uint64 // to be sent to a peer without an address
	BadHello     uint64 // streams that began with no Hello or a wrong one
	Identity     uint64 // streams whose certificate is not that of the replica they claim to be
	Forged       uint64 // arrived with another sender than its stream's
	Misaddressed uint64 // arrived for another replica
	UnknownBody  uint64 // arrived with a body that this version does not know
	Oversize     uint64 // larger than MaxEnvelope; ends its stream
}

// Status is the state of a network.
type Status struct {
	Peers   []PeerStatus // by replica
	Refused Refused
}

// PeerStatus is the state of one peer.
type PeerStatus struct {
	Replica    policies.ReplicaID
	Address    string // "" while unknown
	Connected  bool   // the own stream to it is up
	Incoming   int    // its streams to here
	Watched    bool
	Gone       bool          // watched, and silent or ended
	SinceHeard time.Duration // since its last word; 0 before the first
	// Queued wait to be sent; Sent and Dropped were to be sent; Received came,
	// answers to Beats among them. The answers of here are not in Sent.
	Queued                  int
	Sent, Dropped, Received uint64
	// The versions and the process of its last Hello; 0 before.
	MarketVersion            uint32
	TransferMin, TransferMax uint32
	Incarnation              uint64
}

// Status returns the state now.
func (n *Network) Status() Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := Status{Refused: n.refused, Peers: make([]PeerStatus, 0, len(n.peers))}
	for id, p := range n.peers {
		ps := PeerStatus{
			Replica: id, Address: p.address, Connected: p.connected, Incoming: len(p.streams), Watched: p.watched, Gone: p.watched && p.gone,
			Queued: len(p.queue), Sent: p.sent, Dropped: p.dropped, Received: p.received,
			MarketVersion: p.hello.GetMarketVersion(), TransferMin: p.hello.GetTransferMin(), TransferMax: p.hello.GetTransferMax(), Incarnation: p.hello.GetIncarnation(),
		}
		if !p.lastHeard.IsZero() {
			ps.SinceHeard = time.Since(p.lastHeard)
		}
		s.Peers = append(s.Peers, ps)
	}
	slices.SortFunc(s.Peers, func(a, b PeerStatus) int { return cmp.Compare(a.Replica, b.Replica) })
	return s
}
