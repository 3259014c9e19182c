package peer

import (
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// During an upgrade a replica is two processes behind one address. What they
// send is handled alike, by whichever process; the own stream is for the later
// one, which is there to stay.

// errSuperseded ends a session whose stream is to reach another process.
var errSuperseded = errors.New("a later process of the replica is there")

// errUnread ends a stream to an earlier process that takes nothing any more.
var errUnread = errors.New("the earlier process of the replica does not answer")

// handleSuccessorLocked takes note that a process has come which is later than all that
// were known. Where a stream from or to an earlier one is open both live: the
// own stream moves on to the later. Otherwise the replica was restarted.
func (n *Network) handleSuccessorLocked(p *peer) {
	if p.connected {
		// The link goes by itself, unless it waits to send what is not taken. By
		// the end of Silence the later process is to have answered.
		cut, t := p.cancelStream, (*time.Timer)(nil)
		t = time.AfterFunc(n.cfg.PeerTimeout/2, func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			if p.switchTimer == t {
				cut(errUnread)
			}
		})
		p.switchTimer = t
		n.ensureStreamLocked(p)
	}
	switch {
	case len(p.streams) > 0 || !p.watched || p.gone:
	case p.connected:
		p.soleEvidence = true // part finds out whether the stream was open indeed
	default:
		n.markEndedLocked(p)
	}
}

// markEndedLocked has Gone told of a process that another one has replaced.
func (n *Network) markEndedLocked(p *peer) {
	if p.watched && !p.gone {
		p.endPending = true
		n.wakeLiveness()
	}
}

// superseded reports whether a later process has come since the own stream was
// opened.
func (n *Network) superseded(p *peer) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return p.connected && p.hello.GetIncarnation() > p.knownAtConnect
}

// reachedPredecessor reports whether the own stream has reached an earlier process although
// a later one lives: the address was not handed over yet.
func (n *Network) reachedPredecessor(p *peer) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	latest := p.hello.GetIncarnation()
	return p.connected && p.reached < latest && p.streams[latest] != nil
}

// endStream ends a session: because of err, or gently (o is not nil), in which case
// the peer's process may take its time to read what was sent, up to Silence,
// while the next session begins.
func (n *Network) endStream(p *peer, o *outgoing, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	vouched, earlier := p.soleEvidence, p.reached
	p.cancelStream, p.connected, p.soleEvidence, p.switchTimer = nil, false, false, nil
	if o == nil {
		if vouched && !endedByPeer(err) {
			n.reportEndIfGoneLocked(p, earlier)
		}
		return
	}
	n.wg.Go(func() {
		o.stream.CloseSend() // an error is the reader's too
		late := time.AfterFunc(n.cfg.PeerTimeout, func() { o.cancel(errUnread) })
		<-o.done
		late.Stop()
		o.cancel(nil)
		o.conn.Close()
		if vouched && !endedByPeer(o.err) {
			n.mu.Lock()
			n.reportEndIfGoneLocked(p, earlier)
			n.mu.Unlock()
		}
	})
}

// reportEndIfGoneLocked takes note that an earlier process had ended when its successor
// came, if no stream from a process as early says otherwise.
func (n *Network) reportEndIfGoneLocked(p *peer, earlier uint64) {
	for incarnation := range p.streams {
		if incarnation <= earlier {
			return
		}
	}
	if n.ctx != nil {
		n.markEndedLocked(p)
	}
}

// endedByPeer reports whether the end of an own stream was the peer's answer,
// rather than the end of its process or connection. Exchange has a code of its
// own for what it ends: gRPC reports broken connections as Unavailable.
func endedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || status.Code(err) == codes.Aborted || errors.Is(err, errRedial)
}
