package publish

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/internal/planrollout"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// awaitedTypes are the types that rollouts wait for.
var awaitedTypes = planrollout.AwaitedTypes()

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
	// maxNACKs bounds the NACKs that the Publisher has not taken yet.
	maxNACKs = 1024
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
	nacks        []planrollout.NACK // not taken yet, oldest first
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

func (l *Ledger) signal() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

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

// observe answers a rollout's queries. unanswered returns the nodes that have
// not replied to all responses of some types, and whose state is therefore
// unknown.
func (l *Ledger) observe(needs []planrollout.Query, unanswered func(types []string) map[string]bool) map[string]planrollout.Observation {
	type question struct {
		planrollout.Query
		late, behind     targetVersions
		unsure, unsureIn map[string]bool
	}
	questions := make(map[string]*question, len(needs))
	out := make(map[string]planrollout.Observation, len(needs))
	asked := make(map[string]map[string]bool) // by types
	unsure := func(types []string) map[string]bool {
		k := strings.Join(types, " ")
		if asked[k] == nil && len(types) > 0 {
			asked[k] = unanswered(types)
		}
		return asked[k]
	}
	for _, n := range needs {
		q := &question{Query: n, late: newVersions(n.Set, n.Types), unsure: unsure(n.Types)}
		if n.WantBehind {
			q.behind, q.unsureIn = newVersions(n.Set, awaitedTypes), unsure(awaitedTypes)
		}
		questions[n.Group] = q
		out[n.Group] = planrollout.Observation{Serial: n.Serial, Late: make(map[string]bool), Behind: make(map[string]bool)}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, n := range l.nodes {
		q := questions[n.group]
		if q == nil || n.isObserver() {
			continue
		}
		f := out[n.group]
		if !n.counts {
			f.OthersLate = f.OthersLate || q.unsure[id] // not if it has refused
			out[n.group] = f
			continue
		}
		if len(n.streams) > 0 {
			f.Nodes++
		}
		if q.unsure[id] || n.isBehind(q.late) || n.isReconnecting(q.Types) {
			f.Late[id] = true
		}
		if q.WantBehind && (q.unsureIn[id] || n.isBehind(q.behind) || n.isReconnecting(awaitedTypes)) {
			f.Behind[id] = true
		}
		out[n.group] = f
	}
	return out
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
		asked := false
		for _, s := range n.streams {
			asked = asked || s.types[typ] != nil
		}
		if !asked {
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
	l.signal()
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
		known = &node{id: id, streams: make(map[streamKey]*stream), subscribed: make(map[string]bool)}
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

// shortType returns the last part of a type URL.
func shortType(typeURL string) string {
	return typeURL[strings.LastIndexByte(typeURL, '.')+1:]
}

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
	l.signal()
}

// The ledger only records NACKs; planrollout/nack.go decides what follows.

// takeNACKs returns the NACKs since the last call, oldest first.
func (l *Ledger) takeNACKs() []planrollout.NACK {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.nacks
	l.nacks = nil
	if len(out) == 0 {
		return nil
	}
	connected := make(map[string]int)
	for _, n := range l.nodes {
		if n.counts && len(n.streams) > 0 && !n.isObserver() {
			connected[n.group]++
		}
	}
	for i := range out {
		out[i].Nodes = connected[out[i].Group]
	}
	return out
}

// recordNACKLocked records a NACK and logs the first one of a row. NACKs of
// observers, which route nothing, and of nodes that do not count do not reach the
// rollout, nor do those of extension configs, which have a default.
func (l *Ledger) recordNACKLocked(s *stream, typ string, sub *subscription, text string, r response) {
	s.node.nacks++
	s.node.lastError, s.node.errorAt = redact(text), time.Now()
	if len(r.versions) > 0 && typ != resources.ExtensionType && s.node.counts && !s.node.isObserver() {
		l.nacks = append(l.nacks, planrollout.NACK{
			Node: s.node.id, Group: s.node.group, Type: typ, Resources: r.versions, Text: s.node.lastError,
		})
		l.nacks = l.nacks[max(0, len(l.nacks)-maxNACKs):]
	}
	if !sub.refused {
		l.log.Warn("node refused a response", "node", s.node.id, "type", shortType(typ), "error", s.node.lastError)
	}
	sub.refused = true
}
