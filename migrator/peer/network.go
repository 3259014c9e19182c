package peer

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
	xds "github.com/cascadeinfer/cascade/xds/api"
)

// Network is one migrator's connections to its peers. Its methods are safe for concurrent use.
type Network struct {
	// Fixed after New.
	cfg          Config
	log          *slog.Logger
	server       *grpc.Server
	livenessWake chan struct{} // holds a token when runLiveness must check the peers

	wg sync.WaitGroup // goroutines of Run; added to under mu, while ctx is set

	mu       sync.Mutex
	ctx      context.Context // Run's context; nil while it does not run
	peers    map[policies.ReplicaID]*peer
	incoming int // open streams of peers
	fetches  int // calls of FetchKV and FetchPrefix of peers
}

// peer is the state of one replica, guarded by Network.mu.
type peer struct {
	id      policies.ReplicaID
	address string // "" if unknown
	listed  bool   // named by SetPeers
	watched bool
	wake    chan struct{} // holds a token when there is work for keepStream

	// Outgoing stream.
	streaming      bool                    // a goroutine runs keepStream
	connected      bool                    // the stream is open
	reached        uint64                  // incarnation at the other end, while connected
	knownAtConnect uint64                  // greatest known incarnation when the stream was opened
	soleEvidence   bool                    // the stream is the only evidence that an earlier process is alive
	switchTimer    *time.Timer             // cancels the stream unless it switches to a later process by itself
	cancelStream   context.CancelCauseFunc // ends the current stream; nil if there is none
	queue          []queuedEnvelope
	bytes          int  // of queue
	refusals       int  // consecutive refused connections
	localFault     bool // the last dial failed for a reason of this process

	// Incoming streams.
	streams      map[uint64]*incoming // by incarnation
	hello        *api.Hello           // of the greatest incarnation, nil before the first
	lastHeard    time.Time            // when anything last arrived
	missedBeats  int                  // heartbeat intervals since then
	gone         bool
	endPending   bool // the known process has ended; PeerGone must be called
	goneReported bool // PeerGone was called, and nothing has arrived since
	backPending  bool // something arrived after that; PeerBack must be called
}

// queuedEnvelope is an envelope in a queue.
type queuedEnvelope struct {
	envelope *api.Envelope
	bytes    int
	queuedAt time.Time
}

// New returns a Network without peers and starts nothing. The error names the invalid
// field of cfg.
func New(cfg Config) (*Network, error) {
	cfg, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	n := &Network{
		cfg:          cfg,
		log:          cfg.Logger.With("replica", string(cfg.Self)),
		livenessWake: make(chan struct{}, 1),
		peers:        make(map[policies.ReplicaID]*peer),
		// Bounds what a peer may send, independently of the HTTP server.
		server: grpc.NewServer(grpc.MaxRecvMsgSize(MaxEnvelope)),
	}
	api.RegisterPeerServer(n.server, &service{n: n})
	return n, nil
}

// Handler returns the handler for gRPC requests of peers. It needs HTTP/2, with TLS or
// without (h2c), and accepts streams while Run runs.
func (n *Network) Handler() http.Handler { return http.HandlerFunc(n.serveStream) }

// serveStream serves one stream of a peer. It sets a write deadline when Run ends, so that
// a peer that does not read cannot block it.
func (n *Network) serveStream(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	ctx := n.ctx
	n.mu.Unlock()
	if ctx == nil {
		n.server.ServeHTTP(w, r) // Exchange rejects it
		return
	}
	set := make(chan struct{})
	forget := context.AfterFunc(ctx, func() {
		defer close(set)
		http.NewResponseController(w).SetWriteDeadline(time.Now().Add(shutdownWriteTimeout))
	})
	n.server.ServeHTTP(w, r)
	if !forget() {
		<-set // w must not be used after return
	}
}

// Run connects to peers and watches them until ctx ends; it returns nil then. It may be
// called once.
func (n *Network) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	n.mu.Lock()
	n.ctx = ctx
	for _, p := range n.peers {
		n.ensureStreamLocked(p)
	}
	n.mu.Unlock()
	n.runLiveness(ctx)
	n.mu.Lock()
	n.ctx = nil
	n.mu.Unlock()
	stop()
	n.wg.Wait()
	n.server.Stop()
	return nil
}

// SetPeers sets the addresses (host:port) of the other replicas. A replica that is no
// longer listed is still reached at its last address while something is sent to it.
func (n *Network) SetPeers(addresses map[policies.ReplicaID]string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, p := range n.peers {
		if _, ok := addresses[id]; !ok {
			p.listed = false
			n.removeIfUnusedLocked(p)
		}
	}
	for id, address := range addresses {
		if id == n.cfg.Self || id == "" || address == "" {
			continue
		}
		p := n.peerLocked(id)
		p.listed = true
		if p.address == address {
			continue
		}
		p.address, p.refusals = address, 0
		if p.cancelStream != nil {
			p.cancelStream(errRedial)
		}
		n.ensureStreamLocked(p)
	}
}

// Send queues an envelope for a peer. It drops it if the peer has no address, if it is too
// large, or later if too much is queued. It fills in From and To and never blocks. The
// caller must not change the body afterwards.
func (n *Network) Send(to policies.ReplicaID, e *api.Envelope) {
	out := &api.Envelope{From: string(n.cfg.Self), To: string(to), Body: e.Body}
	size := proto.Size(out)
	if size > MaxEnvelope {
		n.log.Error("envelope too large to be sent", "peer", string(to), "bytes", size, "max", MaxEnvelope)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.peers[to]
	if p != nil && p.address != "" {
		p.push(queuedEnvelope{envelope: out, bytes: size, queuedAt: time.Now()}, n.cfg.QueueSize)
		n.ensureStreamLocked(p)
	}
}

// push queues an envelope and drops the oldest ones if there is no room.
func (p *peer) push(w queuedEnvelope, most int) {
	for len(p.queue) >= most || len(p.queue) > 0 && p.bytes+w.bytes > queueBytes {
		p.pop()
	}
	p.queue = append(p.queue, w)
	p.bytes += w.bytes
}

func (p *peer) pop() queuedEnvelope {
	w := p.queue[0]
	p.queue[0] = queuedEnvelope{} // release it for garbage collection
	p.queue = p.queue[1:]
	if len(p.queue) == 0 {
		p.queue = nil
	}
	p.bytes -= w.bytes
	return w
}

// Watch replaces the set of watched peers. The network sends Heartbeats to each of them, and calls
// PeerGone when one falls silent. Its timeout starts now.
func (n *Network) Watch(ids []policies.ReplicaID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	wanted := make(map[policies.ReplicaID]bool, len(ids))
	for _, id := range ids {
		wanted[id] = id != n.cfg.Self && id != ""
	}
	for id, p := range n.peers {
		if p.watched && !wanted[id] {
			p.watched = false
			n.removeIfUnusedLocked(p)
		}
	}
	for id, ok := range wanted {
		if !ok {
			continue
		}
		p := n.peerLocked(id)
		if p.watched {
			continue
		}
		p.watched, p.gone, p.endPending = true, false, false
		p.recordHeard(time.Now())
		n.ensureStreamLocked(p)
		n.wakeLiveness()
	}
}

// Topology returns the location of a peer's KV cache from its last Hello, or nil if unknown. It
// is shared and not validated.
func (n *Network) Topology(id policies.ReplicaID) *xds.Topology {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.peers[id]
	if p == nil {
		return nil
	}
	return p.hello.GetTopology()
}

// peerLocked returns the state of a peer, creating it if necessary.
func (n *Network) peerLocked(id policies.ReplicaID) *peer {
	p := n.peers[id]
	if p == nil {
		p = &peer{id: id, wake: make(chan struct{}, 1), streams: make(map[uint64]*incoming)}
		n.peers[id] = p
	}
	return p
}

// removeIfUnusedLocked removes a peer that is not listed or watched and has no stream.
func (n *Network) removeIfUnusedLocked(p *peer) {
	if !p.listed && !p.watched && !p.streaming && len(p.streams) == 0 {
		delete(n.peers, p.id)
	}
}

// wakeLiveness makes runLiveness check the peers.
func (n *Network) wakeLiveness() {
	select {
	case n.livenessWake <- struct{}{}:
	default:
	}
}

// hello returns the Hello of this process.
func (n *Network) hello() *api.Hello {
	return &api.Hello{TransferMin: TransferMin, TransferMax: TransferMax, Incarnation: n.cfg.Incarnation, Topology: n.cfg.Topology()}
}
