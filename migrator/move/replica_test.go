package move_test

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/move"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// replica is a replica of the test fleet.
type replica struct {
	w        *fleet
	id       policies.ReplicaID
	engine   *engine
	frontEnd *frontEnd
	executor *move.Executor
	paths    *transport.Paths
	carrier  carrier
	cancel   context.CancelFunc
	stalls   atomic.Int64 // that were reported

	mu      sync.Mutex
	killed  bool
	frozen  chan struct{} // closed when the replica resumes; nil while it runs
	events  map[bidask.Deal][]bidask.EventKind
	answers map[bidask.Deal]chan bidask.EventKind
}

// Send implements the network of a replica's executor.
func (n *replica) Send(to policies.ReplicaID, e *api.Envelope) {
	t := proto.Clone(e.GetTransfer()).(*api.Transfer)
	w, peer := n.w, n.w.replica(to)
	if envelope > 0 && proto.Size(e) > envelope {
		w.fail("a message of %d bytes: %v", proto.Size(e), move.Kind(t.GetKind()))
	}
	times, wait := 1, latency
	switch w.hitPoint(move.Kind(t.GetKind()).String()) {
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
			if w.partitioned(n, peer) || n.dead() || peer.dead() {
				return
			}
			if w.deliver(w.done, n, peer) {
				peer.executor.Receive(n.id, proto.Clone(t).(*api.Transfer))
			}
		})
	}
}

// notify implements the market of a replica.
func (n *replica) notify(ev bidask.Event) {
	n.mu.Lock()
	n.events[ev.Deal] = append(n.events[ev.Deal], ev.Kind)
	answer := n.answers[ev.Deal]
	n.mu.Unlock()
	if answer != nil {
		answer <- ev.Kind
	}
}

func (n *replica) expect(d bidask.Deal) chan bidask.EventKind {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.answers[d] = make(chan bidask.EventKind, 8)
	return n.answers[d]
}

// await returns the market's next event, or 0 if the replica is killed.
func (n *replica) await(c chan bidask.EventKind) bidask.EventKind {
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

func (n *replica) dead() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.killed
}

func (n *replica) paused() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.frozen != nil
}

// kill kills a migrator. Its engine survives, but loses its requests and its session.
func (n *replica) kill() {
	n.mu.Lock()
	if n.killed {
		n.mu.Unlock()
		return
	}
	n.killed = true
	n.mu.Unlock()
	n.cancel()
	w := n.w
	n.frontEnd.mu.Lock()
	for _, s := range n.frontEnd.streams {
		s.over = true // its client's stream is cut
		s.conn.shut()
		s.notify()
	}
	n.frontEnd.mu.Unlock()
	n.engine.mu.Lock()
	for _, q := range n.engine.seqs {
		if q.conn.front != n {
			w.wg.Go(func() { q.conn.front.frontEnd.handleEvent(q.conn, event{broken: true}); q.conn.shut() })
		}
		n.engine.remove(q)
	}
	n.engine.mu.Unlock()
	n.engine.endSession()
	w.wg.Go(func() {
		time.Sleep(20 * time.Millisecond)
		n.engine.endSession()
		for _, o := range w.replicas {
			if o != n {
				o.peerGone(n)
			}
		}
	})
}

// pause suspends a migrator for a while; its engine continues.
func (n *replica) pause(d time.Duration) {
	n.mu.Lock()
	if n.frozen != nil || n.killed {
		n.mu.Unlock()
		return
	}
	n.frozen = make(chan struct{})
	n.mu.Unlock()
	n.w.addLasting(1)
	n.w.wg.Go(func() {
		defer n.w.addLasting(-1)
		time.Sleep(min(silence, d))
		if d > silence {
			for _, o := range n.w.replicas {
				if o != n {
					o.peerGone(n)
				}
			}
		}
		time.Sleep(d - min(silence, d))
		n.resume()
		if d > silence {
			for _, o := range n.w.replicas {
				if o != n {
					n.peerGone(o)
				}
			}
		}
	})
}

func (n *replica) resume() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.frozen != nil {
		close(n.frozen)
		n.frozen = nil
	}
}

// peerGone is called when the peer network reports another replica as gone.
func (n *replica) peerGone(peer *replica) {
	if n.dead() {
		return
	}
	n.frontEnd.peerLost(peer)
	n.executor.PeerGone(peer.id)
}

// crash kills an engine; an empty one replaces it.
func (n *replica) crash() {
	e := n.engine
	e.mu.Lock()
	for _, q := range e.seqs {
		q.conn.push(event{broken: true})
		e.remove(q)
	}
	for id, r := range e.held {
		e.freeBlocks(r.blocks)
		delete(e.held, id)
	}
	e.mu.Unlock()
}

// withdraw makes the market abort a migration at one side.
func (n *replica) withdraw(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for d := range n.answers {
		if d.String() == id {
			n.executor.Execute(bidask.Action{Kind: bidask.Abort, Deal: d})
		}
	}
}
