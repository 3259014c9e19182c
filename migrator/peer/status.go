package peer

import (
	"cmp"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Refused counts rejected envelopes and streams, by reason.
type Refused struct {
	UnknownPeer  uint64 // sent to a peer without an address
	BadHello     uint64 // streams without a valid Hello
	Identity     uint64 // streams whose certificate is not the certificate of the replica they name
	Forged       uint64 // received with a sender other than the stream's
	Misaddressed uint64 // received for another replica
	UnknownBody  uint64 // received with a body that this version does not know
	Oversize     uint64 // larger than MaxEnvelope; ends the stream
}

// Status is the state of a Network.
type Status struct {
	Peers   []PeerStatus // sorted by replica
	Refused Refused
}

// PeerStatus is the state of one peer.
type PeerStatus struct {
	Replica    policies.ReplicaID
	Address    string // "" if unknown
	Connected  bool   // the own stream to it is open
	Incoming   int    // open streams from it
	Watched    bool
	Gone       bool          // watched, and silent or ended
	SinceHeard time.Duration // since anything arrived; 0 before the first
	// Queued, Sent and Dropped count outgoing envelopes, without replies to Heartbeats;
	// Received counts incoming ones, with replies to Heartbeats.
	Queued                  int
	Sent, Dropped, Received uint64
	// From the last Hello; 0 before the first.
	MarketVersion            uint32
	TransferMin, TransferMax uint32
	Incarnation              uint64
}

// Status returns the current state.
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
