package peer

import (
	"context"
	"time"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
)

// runLiveness sends Beats to the peers that are watched and tells which are gone,
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
			n.log.Warn("a peer is gone", "peer", string(id))
			n.cfg.PeerGone(id)
		}
		for _, id := range back {
			n.log.Info("a peer is back", "peer", string(id))
			n.cfg.PeerBack(id)
		}
		if next.IsZero() || beat.Before(next) {
			next = beat
		}
		timer.Reset(time.Until(next))
	}
}

// checkPeers looks at the watched peers: which have gone now, and when the next one
// would. Of all peers it tells which are back.
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
		// As many Beats must have gone by as well: while this process does not
		// run, its peers are not silent.
		silent := !now.Before(p.lastHeard.Add(n.cfg.PeerTimeout)) && time.Duration(p.missedBeats)*n.cfg.HeartbeatInterval >= n.cfg.PeerTimeout
		if silent && !p.gone && n.cfg.Alive(id) {
			p.recordHeard(now)
			silent = false
		}
		refused := p.refusals >= refusalsUntilGone && len(p.streams) == 0
		switch {
		case p.endPending:
			gone, back = append(gone, id), append(back, id)
			p.endPending, p.gone = false, false // the process that is here lives
		case !p.gone && (silent || refused):
			gone = append(gone, id)
			p.gone, p.goneReported = true, true
		}
		if end := p.lastHeard.Add(n.cfg.PeerTimeout); !p.gone && end.After(now) && (next.IsZero() || end.Before(next)) {
			next = end
		}
		if beats {
			p.sequence++
			n.queueHeartbeatLocked(p)
		}
	}
	return gone, back, next
}

// queueHeartbeatLocked queues a Beat.
func (n *Network) queueHeartbeatLocked(p *peer) {
	if p.address == "" {
		return
	}
	b := &api.Heartbeat{Sequence: p.sequence}
	if in := p.streams[p.reached]; p.connected && in != nil {
		b.Echo = in.lastSequence
	}
	p.push(queuedEnvelope{envelope: n.newHeartbeat(p, b), queuedAt: time.Now()}, n.cfg.QueueSize)
	n.ensureStreamLocked(p)
}

// replyToHeartbeatLocked answers a Beat on the reply stream of the stream on which it
// came: its sender judges this process by what comes over its own connection,
// whichever process of this replica the sender's others reach. Sequence 0 marks
// an answer. While one waits another is not needed.
func (n *Network) replyToHeartbeatLocked(p *peer, in *incoming, b *api.Heartbeat) {
	if b.GetSequence() == 0 {
		return // an answer of a version that answers on its own stream
	}
	in.lastSequence = max(in.lastSequence, b.GetSequence())
	select {
	case in.heartbeatReply <- n.newHeartbeat(p, &api.Heartbeat{Echo: in.lastSequence}):
	default:
	}
}

// handleHeartbeatReply takes note of a Beat that came on the reply stream.
func (n *Network) handleHeartbeatReply(p *peer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.recordAliveLocked(p)
	p.received++
}

// recordAliveLocked takes note of a word of a peer.
func (n *Network) recordAliveLocked(p *peer) {
	p.recordHeard(time.Now())
	if p.gone = false; p.goneReported {
		p.goneReported, p.backPending = false, true
		n.wakeLiveness()
	}
}

// recordHeard takes note of a sign of life.
func (p *peer) recordHeard(now time.Time) { p.lastHeard, p.missedBeats = now, 0 }

func (n *Network) newHeartbeat(p *peer, b *api.Heartbeat) *api.Envelope {
	return &api.Envelope{From: string(n.cfg.Self), To: string(p.id), Body: &api.Envelope_Heartbeat{Heartbeat: b}}
}
