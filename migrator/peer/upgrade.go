package peer

import (
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// During an upgrade two processes of a replica share one address. This process handles the
// envelopes of both in the same way; its own stream goes to the later process, which will remain.

// errSuperseded ends a stream that must switch to a later process.
var errSuperseded = errors.New("a later process of the replica has started")

// errUnread ends a stream to an earlier process that reads nothing any more.
var errUnread = errors.New("the earlier process of the replica does not read")

// handleSuccessorLocked records that a later process has started. If a stream from or to an
// earlier one is open, both are alive, and the own stream switches to the later one.
// Otherwise the replica was restarted.
func (n *Network) handleSuccessorLocked(p *peer) {
	if p.connected {
		// The stream switches by itself, unless it is blocked by a peer that does not
		// read. The later process must have answered by the end of PeerTimeout.
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
		p.soleEvidence = true // endStream determines whether the stream was really open
	default:
		n.markEndedLocked(p)
	}
}

// markEndedLocked schedules the call of PeerGone for a process that another one has replaced.
func (n *Network) markEndedLocked(p *peer) {
	if p.watched && !p.gone {
		p.endPending = true
		n.wakeLiveness()
	}
}

// superseded reports whether a later process has started since the own stream was opened.
func (n *Network) superseded(p *peer) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return p.connected && p.hello.GetIncarnation() > p.knownAtConnect
}

// reachedPredecessor reports whether the own stream has reached an earlier process although
// a later one is alive: the address has not been handed over yet.
func (n *Network) reachedPredecessor(p *peer) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	latest := p.hello.GetIncarnation()
	return p.connected && p.reached < latest && p.streams[latest] != nil
}

// endStream ends a stream, either because of err, or gracefully if o is not nil: then the
// peer's process may read what was sent for up to PeerTimeout, while the next stream starts.
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
		o.stream.CloseSend() // the reader returns its error too
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

// reportEndIfGoneLocked records that an earlier process had ended when its successor
// started, unless a stream from it or from an even earlier one is open.
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

// endedByPeer reports whether the peer ended an own stream, as opposed to the end of its
// process or connection. Exchange uses a code of its own: gRPC reports broken connections
// as Unavailable.
func endedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || status.Code(err) == codes.Aborted || errors.Is(err, errRedial)
}
