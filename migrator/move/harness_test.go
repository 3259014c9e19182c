package move_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/move"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// Durations in the fleets of the tests.
const (
	latency = time.Millisecond
	silence = 2 * time.Second // after which a peer counts as gone
)

// fleet is a few replicas in one process, with real executors and pools of bytes, and minimal fakes
// of everything else. The tests inject faults at named points.
type fleet struct {
	replicas []*replica
	wg       sync.WaitGroup
	done     chan struct{}
	net      transporttest.Network

	mu         sync.Mutex
	cuts       map[[2]*replica]bool
	delays     map[[2]*replica]time.Duration
	faults     []*fault
	errs       []string
	live       int // migrations, by mode
	reprompted int
	number     uint64
	upset      int // faults that have not ended yet
}

// fault is injected once, when its point is reached.
type fault struct {
	point string
	nth   int
	act   func() verdict
	seen  int
}

// verdict is the effect of a fault on the message or call at a point.
type verdict int

const (
	goOn verdict = iota
	drop
	double
	hold
	refuse
	rot
)

// Further parameters of newFleet; set by tests that do not run in parallel.
var (
	breaks bool // an unreliable transport is preferred
	tracer trace.Tracer
	logger *slog.Logger

	envelope int
)

// carrier is a replica's transport that can inject faults into its pulls.
type carrier interface {
	transport.Transport
	// pull pulls a plan from source, with the fault that the verdict names.
	pull(ctx context.Context, p transport.Puller, source *replica, plan transport.Plan, v verdict) (transport.Stats, error)
}

// newFleet returns replicas with the carriers that carry creates.
func newFleet(replicas int, link int64, carry func(*replica) carrier) *fleet {
	w := &fleet{done: make(chan struct{}), cuts: map[[2]*replica]bool{}, delays: map[[2]*replica]time.Duration{}}
	for i := range replicas {
		w.replicas = append(w.replicas, &replica{w: w, id: policies.ReplicaID(rune('a' + i)), engine: newEngine(), events: map[bidask.Deal][]bidask.EventKind{}, answers: map[bidask.Deal]chan bidask.EventKind{}})
	}
	for i, n := range w.replicas {
		n.frontEnd = &frontEnd{w: w, node: n, streams: map[string]*clientStream{}, frozen: map[string]bool{}}
		n.engine.onToken, n.engine.gate = w.watch, n.passGate
		n.carrier = carry(n)
		transports := []transport.Transport{&wire{n.carrier, n}}
		if breaks {
			transports = slices.Insert(transports, 0, transport.Transport(unreliable{&wire{n.carrier, n}}))
		}
		if link > 0 {
			shared := transport.NewEmulatedLink(link, func() int64 { return blockTokens * tokenBytes })
			for i, t := range transports {
				transports[i] = shared.Carry(t)
			}
		}
		n.paths = transport.NewPaths(transport.PathsConfig{Self: n.id, Transports: transports, Pool: n.engine, Logger: logger})
		n.executor = testkit.Must(move.New(move.Config{Self: n.id, Engine: n.engine, FrontEnd: func() move.FrontEnd { return n.frontEnd }, Send: n.Send, Paths: n.paths,
			Address: func(r policies.ReplicaID) string { return string(r) }, Notify: n.notify, MaxEnvelope: envelope, Limits: move.Limits{TailBlocks: 1 + i%2}, Tracer: tracer, Logger: logger,
			OnStall: func(time.Duration, trace.SpanContext) { n.stalls.Add(1) }}))
		ctx, cancel := context.WithCancel(context.Background())
		n.cancel = cancel
		w.wg.Go(func() { n.executor.Run(ctx) })
		w.wg.Go(func() { n.paths.Run(ctx) })
		w.wg.Go(func() { n.carrier.Run(ctx) })
		w.wg.Go(func() {
			time.Sleep(time.Duration(i) * time.Millisecond / 3)
			engines, stop := context.WithCancel(context.Background())
			w.wg.Go(func() { <-w.done; stop() })
			n.engine.run(engines)
		})
	}
	return w
}

// close stops everything.
func (w *fleet) close() {
	for _, n := range w.replicas {
		n.cancel()
		n.resume()
		n.frontEnd.mu.Lock()
		for _, s := range n.frontEnd.streams {
			s.conn.shut()
		}
		n.frontEnd.mu.Unlock()
	}
	close(w.done)
	w.wg.Wait()
}

func (w *fleet) replica(id policies.ReplicaID) *replica {
	for _, n := range w.replicas {
		if n.id == id {
			return n
		}
	}
	panic("no replica " + id)
}

func (w *fleet) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.errs) < 20 {
		w.errs = append(w.errs, fmt.Sprintf(format, args...))
	}
}

func (w *fleet) countMoved(live bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if live {
		w.live++
	} else {
		w.reprompted++
	}
}

// watch checks each token that any engine samples: during a live migration, the front end never
// reads from two engines.
func (w *fleet) watch(q *seq) {
	if q.conn.ended() || q.conn.front.dead() {
		return
	}
	f := q.conn.front.frontEnd
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.streams[q.conn.stream]
	if s != nil && !s.over && s.pending && !s.cut && s.conn == q.conn && len(s.first) > 0 && !s.lost && !w.partitioned(q.conn.front, q.conn.replica) {
		w.fail("%s is sampled at %s while %s goes on with it", s.id, q.leg, s.next.leg)
	}
}

// hitPoint records that a point was reached, and returns the verdict of its fault.
func (w *fleet) hitPoint(point string) verdict {
	w.mu.Lock()
	var due *fault
	for _, f := range w.faults {
		if f.point == point {
			if f.seen == f.nth && due == nil {
				due = f
			}
			f.seen++
		}
	}
	w.mu.Unlock()
	if due == nil {
		return goOn
	}
	return due.act()
}

func (w *fleet) partitioned(a, b *replica) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cuts[[2]*replica{a, b}]
}

// cut cuts a link for a while. Both sides detect a cut of two seconds.
func (w *fleet) cut(a, b *replica, most time.Duration) {
	if a == b {
		return
	}
	set := func(cut bool) {
		w.mu.Lock()
		w.cuts[[2]*replica{a, b}], w.cuts[[2]*replica{b, a}] = cut, cut
		w.mu.Unlock()
	}
	set(true)
	w.addLasting(1)
	w.wg.Go(func() {
		defer w.addLasting(-1)
		time.Sleep(min(silence, most))
		if most > silence {
			a.peerGone(b)
			b.peerGone(a)
		}
		time.Sleep(most - min(silence, most))
		set(false)
	})
}

// addLasting counts the faults that have not ended yet.
func (w *fleet) addLasting(by int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.upset += by
}

func (w *fleet) isCalm() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.upset == 0
}

func (w *fleet) slow(a, b *replica, by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delays[[2]*replica{a, b}], w.delays[[2]*replica{b, a}] = by, by
}

// deliver waits until a link delivers; it returns false if done is closed first.
func (w *fleet) deliver(done <-chan struct{}, from, to *replica) bool {
	w.mu.Lock()
	wait := w.delays[[2]*replica{from, to}]
	w.mu.Unlock()
	for {
		if wait > 0 {
			select {
			case <-time.After(wait):
			case <-done:
				return false
			case <-w.done:
				return false
			}
		}
		if !w.partitioned(from, to) && !from.paused() && !to.paused() {
			return true
		}
		wait = 7 * time.Millisecond
	}
}

// move migrates a request as bidask's market does; it returns when both sides have reported the
// end.
func (w *fleet) move(request string, from, to *replica, cause policies.MigrationCause) {
	w.mu.Lock()
	w.number++
	deal := bidask.Deal{Seller: from.id, Number: w.number}
	w.mu.Unlock()
	length := 0
	for _, r := range from.frontEnd.LocalLegs() {
		if r.Request.ID == request {
			length = int(r.Request.Length())
			break
		}
	}
	if length == 0 || from == to || from.dead() || to.dead() {
		return
	}
	h := policies.Migration{Request: request, Length: policies.Tokens(length), Cause: cause}
	bought, sold := to.expect(deal), from.expect(deal)
	to.executor.Execute(bidask.Action{Kind: bidask.Reserve, Deal: deal, Peer: from.id, Migration: h})
	if to.await(bought) != bidask.Reserved {
		return
	}
	from.executor.Execute(bidask.Action{Kind: bidask.Export, Deal: deal, Peer: to.id, Migration: h})
	to.executor.Execute(bidask.Action{Kind: bidask.Import, Deal: deal, Peer: from.id, Migration: h})
	if to.await(bought) == bidask.TransferFailed {
		to.executor.Execute(bidask.Action{Kind: bidask.Release, Deal: deal, Peer: from.id, Migration: h})
	}
	from.await(sold)
}

// findLeftovers lists what remains during two idle seconds after the end.
func (w *fleet) findLeftovers() []string {
	var out []string
	held := map[*legConn]bool{}
	for _, n := range w.replicas {
		n.frontEnd.mu.Lock()
		for _, s := range n.frontEnd.streams {
			if !s.over {
				held[s.conn] = true
				if s.pending {
					out = append(out, s.id+" is pending")
				}
			}
		}
		n.frontEnd.mu.Unlock()
	}
	for _, n := range w.replicas {
		e := n.engine
		e.mu.Lock()
		for leg, q := range e.seqs {
			if q.frozen || n.frontEnd.countsFrozen(leg) {
				out = append(out, fmt.Sprintf("%s: %s is frozen", n.id, leg))
			}
			if !held[q.conn] {
				out = append(out, fmt.Sprintf("%s: %s belongs to no stream", n.id, leg))
			}
		}
		for id, r := range e.held {
			if r.seq == nil {
				out = append(out, fmt.Sprintf("%s: %s is reserved", n.id, id))
			}
		}
		used := 0
		for _, q := range e.seqs {
			used += len(q.blocks)
		}
		for _, r := range e.held {
			if r.seq == nil {
				used += len(r.blocks)
			}
		}
		if used+len(e.free)+len(e.limbo) != poolBlocks {
			out = append(out, fmt.Sprintf("%s: %d blocks are used and %d free, of %d", n.id, used, len(e.free)+len(e.limbo), poolBlocks))
		}
		out = append(out, e.mistakes...)
		e.mu.Unlock()
		if n.dead() {
			continue
		}
		if s := n.executor.Stats(); s.Running != 0 {
			out = append(out, fmt.Sprintf("%s: %d moves are under way: %+v", n.id, s.Running, n.executor.Migrations()[0]))
		}
		n.mu.Lock()
		for d, kinds := range n.events {
			ends := 0
			for _, k := range kinds {
				if k == bidask.TransferDone || k == bidask.TransferFailed {
					ends++
				}
			}
			if reserved := slices.Contains(kinds, bidask.Reserved); ends > 1 || ends == 0 && d.Seller == n.id || ends == 0 && reserved {
				out = append(out, fmt.Sprintf("%s: the market heard %v of %v", n.id, kinds, d))
			}
		}
		n.mu.Unlock()
	}
	return out
}

// failures joins the failures; it returns "" if there are none.
func (w *fleet) failures() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.errs, "\n")
}

func shuffled[T any](rng *rand.Rand, list []T) []T {
	out := slices.Clone(list)
	rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// unfinished lists the streams that have not ended.
func (w *fleet) unfinished() string {
	var out []string
	for _, n := range w.replicas {
		n.frontEnd.mu.Lock()
		for _, s := range n.frontEnd.streams {
			if !s.over && !n.dead() {
				out = append(out, fmt.Sprintf("%s has %d of %d, held by %s in %d, pending %v, lost %v, cut %v, rescues %d", s.id, len(s.ids), s.max, s.holder.id, s.epoch, s.pending, s.lost, s.cut, s.rescues))
			}
		}
		n.frontEnd.mu.Unlock()
	}
	return strings.Join(out, "; ")
}
