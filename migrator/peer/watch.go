package peer

import (
	"context"
	"time"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
)

// watch sends Beats to the peers that are watched and tells which are gone,
// until ctx ends.
func (n *Network) watch(ctx context.Context) {
	beat := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.look:
		case <-timer.C:
		}
		now := time.Now()
		beats := !now.Before(beat)
		if beats {
			beat = now.Add(n.cfg.Interval)
		}
		gone, next := n.survey(now, beats)
		for _, id := range gone {
			n.log.Warn("a peer is gone", "peer", string(id))
			n.cfg.Gone(id)
		}
		if next.IsZero() || beat.Before(next) {
			next = beat
		}
		timer.Reset(time.Until(next))
	}
}

// survey looks at the watched peers: which have gone now, and when the next one
// would.
func (n *Network) survey(now time.Time, beats bool) (gone []policies.ReplicaID, next time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, p := range n.peers {
		if !p.watched {
			continue
		}
		silent := !now.Before(p.heard.Add(n.cfg.Silence))
		refused := p.refusals >= refusals && len(p.streams) == 0
		switch {
		case p.ended:
			gone = append(gone, id)
			p.ended, p.gone = false, false // the process that is here lives
		case !p.gone && (silent || refused):
			gone = append(gone, id)
			p.gone = true
		}
		if end := p.heard.Add(n.cfg.Silence); !p.gone && (next.IsZero() || end.Before(next)) {
			next = end
		}
		if beats {
			p.sequence++
			n.beatLocked(p, p.sequence)
		}
	}
	return gone, next
}

// beatLocked queues a Beat; sequence 0 marks an answer.
func (n *Network) beatLocked(p *peer, sequence uint64) {
	if p.address == "" {
		return
	}
	e := &api.Envelope{From: string(n.cfg.Self), To: string(p.id), Body: &api.Envelope_Beat{Beat: &api.Beat{Sequence: sequence, Echo: p.seen}}}
	p.push(waiting{envelope: e, since: time.Now()}, n.cfg.Queue)
	n.linkLocked(p)
}

// hearBeatLocked takes note of a Beat. One of a peer that is not watched is
// answered; a watched one hears the next Beat anyway.
func (n *Network) hearBeatLocked(p *peer, b *api.Beat) {
	p.seen, p.echo = max(p.seen, b.GetSequence()), max(p.echo, b.GetEcho())
	if b.GetSequence() > 0 && !p.watched {
		n.beatLocked(p, 0)
	}
}
