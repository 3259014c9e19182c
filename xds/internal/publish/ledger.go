package publish

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/wakeup"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Bounds of the data that the ledger keeps of its nodes.
const (
	maxCluster      = 256 // bytes of the name of a node's cluster
	maxDisconnected = 256 // nodes remembered without a stream
	// reconnectTime is how long a proxy that lost its streams is expected to
	// reconnect. Envoy tries again after half a second.
	reconnectTime = 2 * time.Second
	// maxErrorText bounds the redacted error text of a NACK, in bytes. Envoy's
	// may contain the whole resource.
	maxErrorText = 300
)

// Ledger records what every node was sent and what it has acknowledged. It
// implements the callbacks of go-control-plane's server. All streams of a node,
// one per resource type for instance, count as one node. It is safe for
// concurrent use.
type Ledger struct {
	log     *slog.Logger
	changed chan struct{} // capacity 1: a node acknowledged, connected or disconnected

	mu           sync.Mutex
	nodes        map[string]*node
	streams      map[streamKey]*stream
	disconnected []string // ids of nodes without a stream, the longest disconnected first
	groupOf      func(id, cluster string) string
	counts       func(id string) bool
}

// streamKey identifies a stream; each protocol counts its own.
type streamKey struct {
	sotw bool
	id   int64
}

// node is one client with all its streams.
type node struct {
	id, cluster string
	group       string
	counts      bool            // what it refuses counts, and rollouts wait for it
	since       time.Time       // start of its first open stream, or end of its last one if none is open
	subscribed  map[string]bool // delta: types that it has subscribed to, on any stream
	streams     map[streamKey]*stream
	planEpoch   policies.Epoch // of a follower: that it acknowledged last; 0: unknown
	nacks       uint64
	refusals    map[string]refusal // by type, until the node lacks nothing
	lastError   string
	errorAt     time.Time
	slots       map[lifecycle.Kind]SlotReply // by kind; nil: none yet
}

// NewLedger returns an empty ledger. A nil logger discards.
func NewLedger(log *slog.Logger) *Ledger {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Ledger{
		log: log, changed: make(chan struct{}, 1),
		nodes: make(map[string]*node), streams: make(map[streamKey]*stream),
		groupOf: func(string, string) string { return "" },
		counts:  func(string) bool { return true },
	}
}

// Changed is signalled, at least once, after every change of a node's acknowledged
// resources.
func (l *Ledger) Changed() <-chan struct{} { return l.changed }

// classify assigns all nodes, present and future, to groups, and decides which count;
// nil: all.
func (l *Ledger) classify(groupOf func(id, cluster string) string, counts func(id string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.groupOf = groupOf
	if counts != nil {
		l.counts = counts
	}
	for _, n := range l.nodes {
		n.group, n.counts = groupOf(n.id, n.cluster), l.counts(n.id)
	}
}

// observe returns the state of a group's nodes. unanswered adds the nodes that have not replied to
// all responses of some types, and whose state is therefore unknown.
func (l *Ledger) observe(q query, unanswered func(types []string, ids map[string]bool)) observation {
	awaited, all := newVersions(q.set, q.types), newVersions(q.set, awaitedTypes)
	if len(q.types) > 0 {
		unanswered(q.types, awaited.unanswered)
	}
	if len(q.fenced) > 0 {
		unanswered(awaitedTypes, all.unanswered)
	}
	out := observation{late: make(map[string]bool), behind: make(map[string]bool)}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, n := range l.nodes {
		switch {
		case n.group != q.group || n.isObserver():
		case !n.counts:
			out.othersLate = out.othersLate || awaited.unanswered[id] // a refusal is an answer
		default:
			refusals := n.refusalsOf(all)
			out.refusals = append(out.refusals, refusals...)
			if len(n.streams) > 0 || len(refusals) > 0 {
				out.nodes++
			}
			if n.isLate(awaited) {
				out.late[id] = true
			}
			if q.fenced[id] != "" && n.isLate(all) {
				out.behind[id] = true
			}
		}
	}
	slices.SortFunc(out.refusals, func(a, b refusal) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.typ, b.typ))
	})
	return out
}

// refusalsOf returns what the node refuses of a set. It forgets refusals of other versions. When the node
// lacks nothing or has left, it forgets those that the rollout has observed.
func (n *node) refusalsOf(all targetVersions) (out []refusal) {
	for typ, f := range n.refusals {
		inSet := func(v version) bool { return v.isIn(all.set, typ) }
		if f.observed && !n.isLate(all) || !slices.ContainsFunc(f.versions, inSet) {
			delete(n.refusals, typ)
			continue
		}
		f.observed = true
		n.refusals[typ] = f
		out = append(out, f)
	}
	return out
}

// isLate reports whether a rollout has to wait for the node.
func (n *node) isLate(v targetVersions) bool {
	return v.unanswered[n.id] || n.isBehind(v) || n.isReconnecting(v.types)
}

// logLevel returns the level at which connects and disconnects are logged.
func (n *node) logLevel() slog.Level {
	if n.isObserver() {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

func (n *node) isObserver() bool { return n.cluster == resources.ObserverCluster }

// isBehind reports whether the node has not acknowledged the set's resources of the types, as far
// as it subscribes to them.
func (n *node) isBehind(v targetVersions) bool {
	for _, s := range n.streams {
		for typ, sub := range s.types {
			if v.includes(typ) && sub.isBehind(v, typ) {
				return true
			}
		}
	}
	return false
}

// hasAcked reports whether the node has acknowledged a resource of one of the
// types.
func (n *node) hasAcked(types []string) bool {
	for _, s := range n.streams {
		for typ, sub := range s.types {
			if len(sub.applied) > 0 && slices.Contains(types, typ) {
				return true
			}
		}
	}
	return false
}

// isReconnecting reports whether the node recently had a stream with one of the
// types, and has none now.
func (n *node) isReconnecting(types []string) bool {
	if time.Since(n.since) >= reconnectTime {
		return false
	}
	for _, typ := range types {
		if !n.subscribed[typ] {
			continue
		}
		subscribed := false
		for _, s := range n.streams {
			subscribed = subscribed || s.types[typ] != nil
		}
		if !subscribed {
			return true
		}
	}
	return false
}

// openStream adds a stream whose node is not known yet.
func (l *Ledger) openStream(key streamKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams[key] = &stream{types: make(map[string]*subscription)}
}

// closeStream removes a stream.
func (l *Ledger) closeStream(key streamKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.streams[key]
	delete(l.streams, key)
	if s == nil || s.node == nil {
		return
	}
	n := s.node
	delete(n.streams, key)
	if len(n.streams) == 0 {
		n.since = time.Now()
		l.disconnected = append(l.disconnected, n.id)
		if len(l.disconnected) > maxDisconnected {
			delete(l.nodes, l.disconnected[0])
			l.disconnected = slices.Delete(l.disconnected, 0, 1)
		}
		l.log.Log(context.Background(), n.logLevel(), "node disconnected", "node", n.id)
	}
	wakeup.Send(l.changed)
}

// streamOfLocked returns the stream of a request, and binds it to its node at
// the first one, whose id package server has checked.
func (l *Ledger) streamOfLocked(key streamKey, n *corev3.Node) (*stream, error) {
	s := l.streams[key]
	if s == nil {
		return nil, status.Error(codes.Internal, "internal error: request on a stream that was not opened")
	}
	if s.node != nil {
		return s, nil
	}
	id := n.GetId()
	known := l.nodes[id]
	if known == nil {
		known = &node{
			id: id, streams: make(map[streamKey]*stream), subscribed: make(map[string]bool), refusals: make(map[string]refusal),
		}
		l.nodes[id] = known
	}
	known.cluster = sanitize(n.GetCluster(), maxCluster)
	known.group, known.counts = l.groupOf(id, known.cluster), l.counts(id)
	if len(known.streams) == 0 {
		known.since = time.Now()
		l.disconnected = slices.DeleteFunc(l.disconnected, func(g string) bool { return g == id })
		l.log.Log(context.Background(), known.logLevel(), "node connected", "node", id)
	}
	known.streams[key], s.node = s, known
	return s, nil
}

var _ serverv3.Callbacks = (*Ledger)(nil)

// OnDeltaStreamOpen implements serverv3.Callbacks.
func (l *Ledger) OnDeltaStreamOpen(_ context.Context, id int64, _ string) error {
	l.openStream(streamKey{false, id})
	return nil
}

// OnDeltaStreamClosed implements serverv3.Callbacks.
func (l *Ledger) OnDeltaStreamClosed(id int64, _ *corev3.Node) { l.closeStream(streamKey{false, id}) }

// OnStreamDeltaRequest implements serverv3.Callbacks. An error ends the stream.
func (l *Ledger) OnStreamDeltaRequest(id int64, req *discoveryv3.DeltaDiscoveryRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.streamOfLocked(streamKey{false, id}, req.GetNode())
	if err != nil {
		return err
	}
	sub := s.subscription(req.GetTypeUrl())
	sub.applyDelta(req)
	if slices.Contains(awaitedTypes, req.GetTypeUrl()) {
		s.node.subscribed[req.GetTypeUrl()] = true
	}
	l.recordReplyLocked(s, sub, req)
	return nil
}

// OnStreamDeltaResponse implements serverv3.Callbacks.
func (l *Ledger) OnStreamDeltaResponse(id int64, _ *discoveryv3.DeltaDiscoveryRequest, resp *discoveryv3.DeltaDiscoveryResponse) {
	l.recordSent(streamKey{false, id}, resp.GetTypeUrl(), deltaResponse(resp))
}

// OnStreamOpen implements serverv3.Callbacks.
func (l *Ledger) OnStreamOpen(_ context.Context, id int64, _ string) error {
	l.openStream(streamKey{true, id})
	return nil
}

// OnStreamClosed implements serverv3.Callbacks.
func (l *Ledger) OnStreamClosed(id int64, _ *corev3.Node) { l.closeStream(streamKey{true, id}) }

// OnStreamRequest implements serverv3.Callbacks. An error ends the stream.
func (l *Ledger) OnStreamRequest(id int64, req *discoveryv3.DiscoveryRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.streamOfLocked(streamKey{true, id}, req.GetNode())
	if err != nil {
		return err
	}
	sub := s.subscription(req.GetTypeUrl())
	sub.applySotW(req)
	l.recordReplyLocked(s, sub, req)
	return nil
}

// OnStreamResponse implements serverv3.Callbacks.
func (l *Ledger) OnStreamResponse(_ context.Context, id int64, _ *discoveryv3.DiscoveryRequest, resp *discoveryv3.DiscoveryResponse) {
	l.recordSent(streamKey{true, id}, resp.GetTypeUrl(), sotwResponse(resp))
}

func (l *Ledger) recordSent(key streamKey, typ string, r response) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.streams[key]; s != nil {
		s.subscription(typ).addSent(r)
	}
}

// OnFetchRequest implements serverv3.Callbacks. REST clients are not recorded.
func (l *Ledger) OnFetchRequest(context.Context, *discoveryv3.DiscoveryRequest) error { return nil }

// OnFetchResponse implements serverv3.Callbacks.
func (l *Ledger) OnFetchResponse(*discoveryv3.DiscoveryRequest, *discoveryv3.DiscoveryResponse) {}

// reply is the part of a request, in both protocols, that answers the last
// response.
type reply interface {
	GetTypeUrl() string
	GetResponseNonce() string
	GetErrorDetail() *rpcstatus.Status
}

// recordReplyLocked records an ACK or a NACK and signals it.
func (l *Ledger) recordReplyLocked(s *stream, sub *subscription, r reply) {
	if r.GetTypeUrl() == resources.ExtensionType {
		s.node.recordSlotsLocked(sub, r)
	}
	if e := r.GetErrorDetail(); e != nil {
		was, _ := sub.takeSent(r.GetResponseNonce())
		for _, name := range was.removed {
			delete(sub.applied, name) // the removal is not sent again
		}
		l.recordNACKLocked(s, r.GetTypeUrl(), sub, e.GetMessage(), was)
	} else {
		s.node.planEpoch = cmp.Or(sub.acknowledge(r.GetResponseNonce()).epoch, s.node.planEpoch)
	}
	wakeup.Send(l.changed)
}

// recordNACKLocked records a NACK and logs the first one of a row. Three kinds of NACKs never reach the
// rollout: those of observers, which route nothing, those of nodes that do not count, and those of
// extension configs, which have a default.
func (l *Ledger) recordNACKLocked(s *stream, typ string, sub *subscription, text string, r response) {
	n := s.node
	n.nacks++
	n.lastError, n.errorAt = redact(text), time.Now()
	if len(r.versions) > 0 && typ != resources.ExtensionType && n.counts && !n.isObserver() {
		versions := slices.Clone(r.versions)
		for _, v := range n.refusals[typ].versions {
			if !slices.ContainsFunc(r.versions, func(o version) bool { return o.name == v.name }) {
				versions = append(versions, v)
			}
		}
		n.refusals[typ] = refusal{node: n.id, typ: typ, versions: versions, text: n.lastError, at: n.errorAt}
	}
	if !sub.refused {
		l.log.Warn("node refused a response", "node", n.id, "type", resources.ShortType(typ), "error", n.lastError)
	}
	sub.refused = true
}
