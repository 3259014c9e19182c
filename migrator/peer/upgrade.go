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

// succeedLocked takes note that a process has come which is later than all that
// were known. Where a stream from or to an earlier one is open both live: the
// own stream moves on to the later. Otherwise the replica was restarted.
func (n *Network) succeedLocked(p *peer) {
	if p.connected {
		// The link goes by itself, unless it waits to send what is not taken. By
		// the end of Silence the later process is to have answered.
		cut, t := p.cut, (*time.Timer)(nil)
		t = time.AfterFunc(n.cfg.PeerTimeout/2, func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			if p.stuck == t {
				cut(errUnread)
			}
		})
		p.stuck = t
		n.linkLocked(p)
	}
	switch {
	case len(p.streams) > 0 || !p.watched || p.gone:
	case p.connected:
		p.vouched = true // part finds out whether the stream was open indeed
	default:
		n.endedLocked(p)
	}
}

// endedLocked has Gone told of a process that another one has replaced.
func (n *Network) endedLocked(p *peer) {
	if p.watched && !p.gone {
		p.ended = true
		n.lookAgain()
	}
}

// superseded reports whether a later process has come since the own stream was
// opened.
func (n *Network) superseded(p *peer) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return p.connected && p.hello.GetIncarnation() > p.known
}

// behind reports whether the own stream has reached an earlier process although
// a later one lives: the address was not handed over yet.
func (n *Network) behind(p *peer) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	latest := p.hello.GetIncarnation()
	return p.connected && p.reached < latest && p.streams[latest] != nil
}

// part ends a session: because of err, or gently (o is not nil), in which case
// the peer's process may take its time to read what was sent, up to Silence,
// while the next session begins.
func (n *Network) part(p *peer, o *outgoing, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	vouched, earlier := p.vouched, p.reached
	p.cut, p.connected, p.vouched, p.stuck = nil, false, false, nil
	if o == nil {
		if vouched && !leftAlive(err) {
			n.judgeLocked(p, earlier)
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
		if vouched && !leftAlive(o.err) {
			n.mu.Lock()
			n.judgeLocked(p, earlier)
			n.mu.Unlock()
		}
	})
}

// judgeLocked takes note that an earlier process had ended when its successor
// came, if no stream from a process as early says otherwise.
func (n *Network) judgeLocked(p *peer, earlier uint64) {
	for incarnation := range p.streams {
		if incarnation <= earlier {
			return
		}
	}
	if n.ctx != nil {
		n.endedLocked(p)
	}
}

// leftAlive reports whether the end of an own stream was the peer's answer,
// rather than the end of its process or connection. Exchange has a code of its
// own for what it ends: gRPC reports broken connections as Unavailable.
func leftAlive(err error) bool {
	return errors.Is(err, io.EOF) || status.Code(err) == codes.Aborted || errors.Is(err, errRedial)
}
