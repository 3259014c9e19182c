package publish

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/xds/internal/rollout"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// gated are the types that roll-outs wait for.
var gated = rollout.Gated()

// Bounds of what a node may make the ledger keep.
const (
	maxNodeID = 256 // bytes of a node's id
	maxGone   = 256 // nodes remembered without a stream
	// absence is how long a lost proxy counts as about to come back. Envoy
	// tries again after half a second.
	absence = 2 * time.Second
	// maxErrorText bounds the reason of a refusal: Envoy's may contain the
	// whole resource.
	maxErrorText = 300
	// maxRefused bounds the refusals that nobody has taken yet.
	maxRefused = 1024
)

// Ledger records what every node was sent and what it has acknowledged. It is
// the callbacks of go-control-plane's server. It is keyed by node: where a
// node has a stream per resource type, they are one node all the same. It is
// safe for concurrent use.
type Ledger struct {
	log     *slog.Logger
	changed chan struct{} // capacity 1: somebody acknowledged, came or went

	mu      sync.Mutex
	nodes   map[string]*node
	streams map[streamKey]*stream
	gone    []string // ids of nodes without a stream, longest gone first
	groupOf func(id, cluster string) string
	refused []rollout.Refuse // not taken yet, oldest first
}

var _ serverv3.Callbacks = (*Ledger)(nil)

// streamKey names a stream: each protocol counts its own.
type streamKey struct {
	sotw bool
	id   int64
}

// node is one client, whatever streams it has.
type node struct {
	id, cluster string
	group       string
	since       time.Time       // of its first open stream; of the last one's end when it is gone
	held        map[string]bool // delta: types that it subscribed to, on any stream
	streams     map[streamKey]*stream
	nacks       uint64
	lastError   string
	errorAt     time.Time
	slots       map[string]SlotReply // by kind; nil: it has answered about none
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
	}
}

// Changed is signalled, at least once, after every change of what nodes have.
func (l *Ledger) Changed() <-chan struct{} { return l.changed }

func (l *Ledger) signal() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// Behind adds the ids of the nodes to ids that have not acknowledged the set's
// resources of the given types, as far as they subscribe to them. A proxy that
// has just lost its stream goes on with what it has, and will come back and ask
// for it again: until it has, it is behind for a while, too.
func (l *Ledger) Behind(set resources.Set, types []string, ids map[string]bool) {
	v := newVersions(set, types)
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, n := range l.nodes {
		if !ids[id] && (n.behind(v) || n.returning(types)) {
			ids[id] = true
		}
	}
}

// sort puts nodes into groups from now on.
func (l *Ledger) sort(groupOf func(id, cluster string) string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.groupOf = groupOf
	for _, n := range l.nodes {
		n.group = groupOf(n.id, n.cluster)
	}
}

// facts answers what a rollout needs to know. unanswered tells who is uncertain
// about some types, whatever it acknowledged before.
func (l *Ledger) facts(needs []rollout.Need, unanswered func(types []string) map[string]bool) map[string]rollout.Fact {
	type question struct {
		rollout.Need
		late, behind     versions
		unsure, unsureIn map[string]bool
	}
	questions := make(map[string]*question, len(needs))
	out := make(map[string]rollout.Fact, len(needs))
	asked := make(map[string]map[string]bool) // by types
	unsure := func(types []string) map[string]bool {
		k := strings.Join(types, " ")
		if asked[k] == nil && len(types) > 0 {
			asked[k] = unanswered(types)
		}
		return asked[k]
	}
	for _, n := range needs {
		q := &question{Need: n, late: newVersions(n.Set, n.Types), unsure: unsure(n.Types)}
		if n.Behind {
			q.behind, q.unsureIn = newVersions(n.Set, gated), unsure(gated)
		}
		questions[n.Group] = q
		out[n.Group] = rollout.Fact{Serial: n.Serial, Late: make(map[string]bool), Behind: make(map[string]bool)}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, n := range l.nodes {
		q := questions[n.group]
		if q == nil || n.observes() {
			continue
		}
		f := out[n.group]
		if len(n.streams) > 0 {
			f.Nodes++
		}
		if q.unsure[id] || n.behind(q.late) || n.returning(q.Types) {
			f.Late[id] = true
		} else if n.holds(q.Types) {
			f.Witnesses++
		}
		if q.Behind && (q.unsureIn[id] || n.behind(q.behind) || n.returning(gated)) {
			f.Behind[id] = true
		}
		out[n.group] = f
	}
	return out
}

// takeRefused returns the refusals since it was last called, oldest first.
func (l *Ledger) takeRefused() []rollout.Refuse {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.refused
	l.refused = nil
	return out
}

// level is how loud a node's coming and going is told: proxies matter.
func (n *node) level() slog.Level {
	if n.observes() {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

func (n *node) observes() bool { return n.cluster == resources.ObserverCluster }

func (n *node) behind(v versions) bool {
	for _, s := range n.streams {
		for typ, sub := range s.types {
			if v.of(typ) && sub.behind(v, typ) {
				return true
			}
		}
	}
	return false
}

// holds reports whether the node has acknowledged something of one of the types.
func (n *node) holds(types []string) bool {
	for _, s := range n.streams {
		for typ, sub := range s.types {
			if len(sub.applied) > 0 && slices.Contains(types, typ) {
				return true
			}
		}
	}
	return false
}

// returning reports whether the node has lately had streams with one of the
// types, and has none now.
func (n *node) returning(types []string) bool {
	if time.Since(n.since) >= absence {
		return false
	}
	for _, typ := range types {
		if !n.held[typ] {
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

// open begins a stream whose node is not known yet.
func (l *Ledger) open(key streamKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams[key] = &stream{types: make(map[string]*subscription)}
}

// close ends a stream.
func (l *Ledger) close(key streamKey) {
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
		l.gone = append(l.gone, n.id)
		if len(l.gone) > maxGone {
			delete(l.nodes, l.gone[0])
			l.gone = slices.Delete(l.gone, 0, 1)
		}
		l.log.Log(context.Background(), n.level(), "node gone", "node", n.id)
	}
	l.signal()
}

// requestLocked finds a request's stream and, with the first one, its node. The
// parts of the node message that nobody here reads are dropped: an Envoy's has
// 61 KB, and the server keeps it for the life of the stream.
func (l *Ledger) requestLocked(key streamKey, n *corev3.Node) (*stream, error) {
	s := l.streams[key]
	if s == nil {
		return nil, status.Error(codes.Internal, "internal error: a request on a stream that was not opened")
	}
	if n != nil {
		n.Extensions, n.ClientFeatures, n.UserAgentVersionType = nil, nil, nil
	}
	if s.node != nil {
		return s, nil
	}
	id := n.GetId()
	if id == "" || len(id) > maxNodeID {
		return nil, status.Errorf(codes.InvalidArgument, "node id %.40q: the first request must carry one of 1 to %d bytes", id, maxNodeID)
	}
	known := l.nodes[id]
	if known == nil {
		known = &node{id: id, streams: make(map[streamKey]*stream), held: make(map[string]bool)}
		l.nodes[id] = known
	}
	known.cluster = clip(n.GetCluster(), maxNodeID)
	known.group = l.groupOf(id, known.cluster)
	if len(known.streams) == 0 {
		known.since = time.Now()
		l.gone = slices.DeleteFunc(l.gone, func(g string) bool { return g == id })
		l.log.Log(context.Background(), known.level(), "node came", "node", id)
	}
	known.streams[key], s.node = s, known
	return s, nil
}

// refusedLocked records a NACK, and logs the first of a row of them. Observers
// route nothing, so what they refuse is their own matter.
func (l *Ledger) refusedLocked(s *stream, typ string, sub *subscription, text string, r sent) {
	s.node.nacks++
	s.node.lastError, s.node.errorAt = reason(text), time.Now()
	if rs := staged(r.versions()); len(rs) > 0 && !s.node.observes() {
		names := make([]string, len(rs))
		for i, v := range rs {
			names[i] = v.Name
		}
		l.refused = append(l.refused, rollout.Refuse{
			Node: s.node.id, Group: s.node.group, Type: typ, Resources: rs,
			Named: blamed(clip(text, maxRawText), names), Text: s.node.lastError,
		})
		l.refused = l.refused[max(0, len(l.refused)-maxRefused):]
	}
	if !sub.refused {
		l.log.Warn("node refuses a resource", "node", s.node.id, "type", shortType(typ), "error", s.node.lastError)
	}
	sub.refused = true
}

// clip makes a client's text safe to log and to show.
func clip(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) <= most {
		return text
	}
	for !isBoundary(text, most) {
		most--
	}
	return text[:most] + "…"
}

func isBoundary(text string, i int) bool { return text[i]&0xC0 != 0x80 }

// shortType is the last word of a type URL.
func shortType(typeURL string) string {
	return typeURL[strings.LastIndexByte(typeURL, '.')+1:]
}

// reply is what requests of both protocols say about the last response.
type reply interface {
	GetTypeUrl() string
	GetResponseNonce() string
	GetErrorDetail() *rpcstatus.Status
}

// replyLocked books an ACK or a NACK, and wakes who waits for one.
func (l *Ledger) replyLocked(s *stream, sub *subscription, r reply) {
	if r.GetTypeUrl() == resources.ExtensionType {
		s.node.slotsLocked(sub, r)
	}
	if e := r.GetErrorDetail(); e != nil {
		was, _ := sub.answered(r.GetResponseNonce())
		for _, name := range was.removed {
			delete(sub.applied, name) // nobody tells it again
		}
		l.refusedLocked(s, r.GetTypeUrl(), sub, e.GetMessage(), was)
	} else {
		sub.acknowledge(r.GetResponseNonce())
	}
	l.signal()
}

// OnDeltaStreamOpen implements the server's callbacks.
func (l *Ledger) OnDeltaStreamOpen(_ context.Context, id int64, _ string) error {
	l.open(streamKey{false, id})
	return nil
}

// OnDeltaStreamClosed implements the server's callbacks.
func (l *Ledger) OnDeltaStreamClosed(id int64, _ *corev3.Node) { l.close(streamKey{false, id}) }

// OnStreamDeltaRequest implements the server's callbacks. An error ends the
// stream.
func (l *Ledger) OnStreamDeltaRequest(id int64, req *discoveryv3.DeltaDiscoveryRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.requestLocked(streamKey{false, id}, req.GetNode())
	if err != nil {
		return err
	}
	sub := s.subscription(req.GetTypeUrl())
	sub.delta(req)
	if slices.Contains(gated, req.GetTypeUrl()) {
		s.node.held[req.GetTypeUrl()] = true
	}
	l.replyLocked(s, sub, req)
	return nil
}

// OnStreamDeltaResponse implements the server's callbacks.
func (l *Ledger) OnStreamDeltaResponse(id int64, _ *discoveryv3.DeltaDiscoveryRequest, resp *discoveryv3.DeltaDiscoveryResponse) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.streams[streamKey{false, id}]; s != nil {
		s.subscription(resp.GetTypeUrl()).send(sent{nonce: resp.GetNonce(), resources: resp.GetResources(), removed: resp.GetRemovedResources()})
	}
}

// OnStreamOpen implements the server's callbacks.
func (l *Ledger) OnStreamOpen(_ context.Context, id int64, _ string) error {
	l.open(streamKey{true, id})
	return nil
}

// OnStreamClosed implements the server's callbacks.
func (l *Ledger) OnStreamClosed(id int64, _ *corev3.Node) { l.close(streamKey{true, id}) }

// OnStreamRequest implements the server's callbacks. An error ends the stream.
func (l *Ledger) OnStreamRequest(id int64, req *discoveryv3.DiscoveryRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.requestLocked(streamKey{true, id}, req.GetNode())
	if err != nil {
		return err
	}
	sub := s.subscription(req.GetTypeUrl())
	sub.sotw(req)
	l.replyLocked(s, sub, req)
	return nil
}

// OnStreamResponse implements the server's callbacks.
func (l *Ledger) OnStreamResponse(_ context.Context, id int64, _ *discoveryv3.DiscoveryRequest, resp *discoveryv3.DiscoveryResponse) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.streams[streamKey{true, id}]; s != nil {
		s.subscription(resp.GetTypeUrl()).send(sent{
			nonce: resp.GetNonce(), bodies: resp.GetResources(),
			complete: resp.GetTypeUrl() == resources.ClusterType || resp.GetTypeUrl() == resources.ListenerType,
		})
	}
}

// OnFetchRequest implements the server's callbacks; REST clients are not
// followed.
func (l *Ledger) OnFetchRequest(context.Context, *discoveryv3.DiscoveryRequest) error { return nil }

// OnFetchResponse implements the server's callbacks.
func (l *Ledger) OnFetchResponse(*discoveryv3.DiscoveryRequest, *discoveryv3.DiscoveryResponse) {}
