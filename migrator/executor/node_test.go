package executor_test

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/executor"
	"github.com/cascadeinfer/cascade/migrator/transfer"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// node is one replica.
type node struct {
	w       *world
	id      policies.ReplicaID
	engine  *engine
	front   *front
	mover   *executor.Executor
	carrier carrier
	cancel  context.CancelFunc

	mu      sync.Mutex
	killed  bool
	frozen  chan struct{} // closed when the replica goes on; nil while it does
	told    map[bidask.Deal][]bidask.EventKind
	answers map[bidask.Deal]chan bidask.EventKind
}

// Send is the network of a node's mover.
func (n *node) Send(to policies.ReplicaID, e *api.Envelope) {
	t := proto.Clone(e.GetTransfer()).(*api.Transfer)
	w, peer := n.w, n.w.node(to)
	if envelope > 0 && proto.Size(e) > envelope {
		w.fail("a message of %d bytes: %v", proto.Size(e), transfer.Kind(t.GetKind()))
	}
	times, wait := 1, latency
	switch w.happens(transfer.Kind(t.GetKind()).String()) {
	case drop:
		times = 0
	case double:
		times = 2
	case hold:
		wait = 150 * time.Millisecond
	}
	for i := range times {
		w.wg.Go(func() {
			time.Sleep(wait + time.Duration(i)*30*time.Millisecond)
			if w.apart(n, peer) || n.dead() || peer.dead() {
				return
			}
			if w.pass(w.done, n, peer) {
				peer.mover.Receive(n.id, proto.Clone(t).(*api.Transfer))
			}
		})
	}
}

// tell is the market of a node.
func (n *node) tell(ev bidask.Event) {
	n.mu.Lock()
	n.told[ev.Deal] = append(n.told[ev.Deal], ev.Kind)
	answer := n.answers[ev.Deal]
	n.mu.Unlock()
	if answer != nil {
		answer <- ev.Kind
	}
}

func (n *node) expect(d bidask.Deal) chan bidask.EventKind {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.answers[d] = make(chan bidask.EventKind, 8)
	return n.answers[d]
}

// await takes the market's next news, 0 when the replica dies.
func (n *node) await(c chan bidask.EventKind) bidask.EventKind {
	for end := time.Now().Add(2 * time.Minute); ; {
		select {
		case k := <-c:
			return k
		case <-n.w.done:
			return 0
		case <-time.After(50 * time.Millisecond):
			if n.dead() {
				return 0
			}
			if time.Now().After(end) {
				n.w.fail("%s: the market hears nothing", n.id)
				return 0
			}
		}
	}
}

func (n *node) dead() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.killed
}

func (n *node) paused() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.frozen != nil
}

// kill is the death of a migrator. The engine beside it lives, and loses its
// requests and its session.
func (n *node) kill() {
	n.mu.Lock()
	if n.killed {
		n.mu.Unlock()
		return
	}
	n.killed = true
	n.mu.Unlock()
	n.cancel()
	w := n.w
	n.front.mu.Lock()
	for _, s := range n.front.streams {
		s.over = true // its client sees a cut
		s.conn.shut()
		s.notify()
	}
	n.front.mu.Unlock()
	n.engine.mu.Lock()
	for _, q := range n.engine.seqs {
		if q.conn.front != n {
			w.wg.Go(func() { q.conn.front.front.hear(q.conn, event{broken: true}); q.conn.shut() })
		}
		n.engine.remove(q)
	}
	n.engine.mu.Unlock()
	n.engine.endSession()
	w.wg.Go(func() {
		time.Sleep(20 * time.Millisecond)
		n.engine.endSession()
		for _, o := range w.nodes {
			if o != n {
				o.gone(n)
			}
		}
	})
}

// pause stops a migrator for a while; its engine goes on.
func (n *node) pause(d time.Duration) {
	n.mu.Lock()
	if n.frozen != nil || n.killed {
		n.mu.Unlock()
		return
	}
	n.frozen = make(chan struct{})
	n.mu.Unlock()
	n.w.lasting(1)
	n.w.wg.Go(func() {
		defer n.w.lasting(-1)
		time.Sleep(min(silence, d))
		if d > silence {
			for _, o := range n.w.nodes {
				if o != n {
					o.gone(n)
				}
			}
		}
		time.Sleep(d - min(silence, d))
		n.resume()
		if d > silence {
			for _, o := range n.w.nodes {
				if o != n {
					n.gone(o)
				}
			}
		}
	})
}

func (n *node) resume() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.frozen != nil {
		close(n.frozen)
		n.frozen = nil
	}
}

// gone is what the peer layer tells about another replica.
func (n *node) gone(peer *node) {
	if n.dead() {
		return
	}
	n.front.lost(peer)
	n.mover.PeerGone(peer.id)
}

// crash is the death of an engine; another one comes up, empty.
func (n *node) crash() {
	e := n.engine
	e.mu.Lock()
	for _, q := range e.seqs {
		q.conn.push(event{broken: true})
		e.remove(q)
	}
	for id, r := range e.held {
		e.give(r.blocks)
		delete(e.held, id)
	}
	e.mu.Unlock()
}

// withdraw has the market abort a move at one side.
func (n *node) withdraw(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for d := range n.answers {
		if d.String() == id {
			n.mover.Execute(bidask.Action{Kind: bidask.Abort, Deal: d})
		}
	}
}
