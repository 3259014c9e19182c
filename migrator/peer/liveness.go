package peer

import (
	"context"
	"time"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
)

// runLiveness sends Heartbeats to the watched peers and reports which are gone or back,
// until ctx ends.
func (n *Network) runLiveness(ctx context.Context) {
	beat := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.livenessWake:
		case <-timer.C:
		}
		now := time.Now()
		beats := !now.Before(beat)
		if beats {
			beat = now.Add(n.cfg.HeartbeatInterval)
		}
		gone, back, next := n.checkPeers(now, beats)
		for _, id := range gone {
			n.log.Warn("peer gone", "peer", string(id))
			n.cfg.PeerGone(id)
		}
		for _, id := range back {
			n.log.Info("peer back", "peer", string(id))
			n.cfg.PeerBack(id)
		}
		if next.IsZero() || beat.Before(next) {
			next = beat
		}
		timer.Reset(time.Until(next))
	}
}

// checkPeers returns the watched peers that are gone now, the peers that are back, and when
// the next peer would be gone.
func (n *Network) checkPeers(now time.Time, beats bool) (gone, back []policies.ReplicaID, next time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, p := range n.peers {
		if p.backPending {
			back, p.backPending = append(back, id), false
		}
		if !p.watched {
			continue
		}
		if beats {
			p.missedBeats++
		}
		// As many intervals must have passed in this process: while it is suspended,
		// its peers are not silent.
		silent := !now.Before(p.lastHeard.Add(n.cfg.PeerTimeout)) && time.Duration(p.missedBeats)*n.cfg.HeartbeatInterval >= n.cfg.PeerTimeout
		if silent && !p.gone && (p.localFault || n.cfg.Alive(id)) {
			p.recordHeard(now)
			silent = false
		}
		refused := p.refusals >= refusalsUntilGone && len(p.streams) == 0
		switch {
		case p.endPending:
			gone, back = append(gone, id), append(back, id)
			p.endPending, p.gone = false, false // its successor is alive
		case !p.gone && (silent || refused):
			gone = append(gone, id)
			p.gone, p.goneReported = true, true
		}
		if end := p.lastHeard.Add(n.cfg.PeerTimeout); !p.gone && end.After(now) && (next.IsZero() || end.Before(next)) {
			next = end
		}
		if beats {
			n.queueHeartbeatLocked(p)
		}
	}
	return gone, back, next
}

// queueHeartbeatLocked queues a Heartbeat.
func (n *Network) queueHeartbeatLocked(p *peer) {
	if p.address == "" {
		return
	}
	p.push(queuedEnvelope{envelope: n.newHeartbeat(p), queuedAt: time.Now()}, n.cfg.QueueSize)
	n.ensureStreamLocked(p)
}

// replyToHeartbeat replies on the reply stream of the stream on which the Heartbeat arrived:
// the sender judges this process by what arrives on its own connection, whichever process of this
// replica its other connections reach. While a reply is waiting, no other is needed.
func (n *Network) replyToHeartbeat(p *peer, in *incoming) {
	select {
	case in.heartbeatReply <- n.newHeartbeat(p):
	default:
	}
}

// handleHeartbeatReply handles a Heartbeat on the reply stream.
func (n *Network) handleHeartbeatReply(p *peer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.recordAliveLocked(p)
}

// recordAliveLocked records that something arrived from a peer.
func (n *Network) recordAliveLocked(p *peer) {
	p.recordHeard(time.Now())
	if p.gone = false; p.goneReported {
		p.goneReported, p.backPending = false, true
		n.wakeLiveness()
	}
}

// recordHeard restarts the timeout of a peer.
func (p *peer) recordHeard(now time.Time) { p.lastHeard, p.missedBeats = now, 0 }

func (n *Network) newHeartbeat(p *peer) *api.Envelope {
	return &api.Envelope{From: string(n.cfg.Self), To: string(p.id), Body: &api.Envelope_Heartbeat{Heartbeat: &api.Heartbeat{}}}
}
