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

// Network is one migrator's connections to the others. Its methods are safe for
// concurrent use.
type Network struct {
	// Fixed after New.
	cfg          Config
	log          *slog.Logger
	server       *grpc.Server
	livenessWake chan struct{} // holds a token when the watch has something to look at

	wg sync.WaitGroup // goroutines of Run; added to under mu, while ctx is set

	mu               sync.Mutex
	ctx              context.Context // of Run; nil while it does not run
	peers            map[policies.ReplicaID]*peer
	incoming         int // streams of peers
	refused          Refused
	identityLoggedAt time.Time // when a stream with a name that is not its own was logged last
}

// peer is what the network knows of one replica. All is guarded by Network.mu.
type peer struct {
	id      policies.ReplicaID
	address string // "" while unknown
	listed  bool   // SetPeers names it
	watched bool
	wake    chan struct{} // holds a token when there is something to do for the link

	// Outgoing.
	streaming      bool                    // a goroutine keeps the stream
	connected      bool                    // the stream is up
	reached        uint64                  // the incarnation that it has reached, while connected
	knownAtConnect uint64                  // the greatest that was known when it did
	soleEvidence   bool                    // it alone tells that an earlier process has not ended
	switchTimer    *time.Timer             // cuts it unless it ends for a later process by itself
	cancelStream   context.CancelCauseFunc // ends the stream in progress, nil for none
	queue          []queuedEnvelope
	bytes          int // of queue
	sent           uint64
	dropped        uint64 // of what was to be sent
	refusals       int    // connections refused since the last that was not

	// Incoming.
	streams      map[uint64]*incoming // by incarnation
	hello        *api.Hello           // of the greatest incarnation, nil before the first
	lastHeard    time.Time            // when anything came
	missedBeats  int                  // Beats that went by since
	received     uint64
	gone         bool
	endPending   bool   // the process that was known has ended; Gone is to be told
	goneReported bool   // Gone was told, and nothing was heard since
	backPending  bool   // it was heard after that; Back is to be told
	sequence     uint64 // of the last own Beat
}

// queuedEnvelope is an envelope in a queue.
type queuedEnvelope struct {
	envelope *api.Envelope
	bytes    int
	queuedAt time.Time
}

// New returns a network without peers; it starts nothing. The error names the
// field of the configuration that is wrong.
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
		// What a client of Peer may send is bounded here, whoever serves HTTP.
		server: grpc.NewServer(grpc.MaxRecvMsgSize(MaxEnvelope)),
	}
	api.RegisterPeerServer(n.server, &service{n: n})
	return n, nil
}

// Handler returns the handler for gRPC requests of peers. It needs HTTP/2, with
// TLS or without (h2c), and takes streams while Run runs.
func (n *Network) Handler() http.Handler { return http.HandlerFunc(n.serveStream) }

// serveStream is one stream of a peer. One that does not read what it is answered
// does not keep Run from ending.
func (n *Network) serveStream(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	ctx := n.ctx
	n.mu.Unlock()
	if ctx == nil {
		n.server.ServeHTTP(w, r) // and Exchange refuses it
		return
	}
	set := make(chan struct{})
	forget := context.AfterFunc(ctx, func() {
		defer close(set)
		http.NewResponseController(w).SetWriteDeadline(time.Now().Add(shutdownWriteTimeout))
	})
	n.server.ServeHTTP(w, r)
	if !forget() {
		<-set // w is not to be used after this
	}
}

// Run connects to peers and watches them until ctx ends; it returns nil then.
// It may be called once.
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

// SetPeers tells where the other replicas are: host:port by replica. A replica
// that is no longer named is still reached at its last address while something
// is sent to it.
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

// Send passes an envelope on to a peer, or drops it: without an address, when
// it is too large, or when too much waits already. Its From and To are filled
// in. It never blocks. The caller must not change the body any more.
func (n *Network) Send(to policies.ReplicaID, e *api.Envelope) {
	out := &api.Envelope{From: string(n.cfg.Self), To: string(to), Body: e.Body}
	size := proto.Size(out)
	if size > MaxEnvelope {
		n.log.Error("an envelope is too large and is not sent", "peer", string(to), "bytes", size, "most", MaxEnvelope)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.peers[to]
	switch {
	case p == nil || p.address == "":
		n.refused.UnknownPeer++
	case size > MaxEnvelope:
		p.dropped++
	default:
		p.push(queuedEnvelope{envelope: out, bytes: size, queuedAt: time.Now()}, n.cfg.QueueSize)
		n.ensureStreamLocked(p)
	}
}

// push queues an envelope, at the cost of the oldest.
func (p *peer) push(w queuedEnvelope, most int) {
	for len(p.queue) >= most || len(p.queue) > 0 && p.bytes+w.bytes > queueBytes {
		p.pop()
		p.dropped++
	}
	p.queue = append(p.queue, w)
	p.bytes += w.bytes
}

func (p *peer) pop() queuedEnvelope {
	w := p.queue[0]
	p.queue[0] = queuedEnvelope{} // not kept alive by the array
	p.queue = p.queue[1:]
	if len(p.queue) == 0 {
		p.queue = nil
	}
	p.bytes -= w.bytes
	return w
}

// Watch names the peers whose end matters, instead of those named before: each
// is sent Beats, and Gone is told when it falls silent. Its time begins now.
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

// TransferVersions tells which versions of the transfer a peer speaks, from its
// last Hello; false while none was heard.
func (n *Network) TransferVersions(id policies.ReplicaID) (low, high uint32, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.peers[id]
	if p == nil || p.hello == nil {
		return 0, 0, false
	}
	return p.hello.GetTransferMin(), p.hello.GetTransferMax(), true
}

// Site is where a peer's KV cache is, as its last Hello told; nil where it did not,
// or none was heard. It is shared, and nobody has checked it.
func (n *Network) Site(id policies.ReplicaID) *xds.Site {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.peers[id]
	if p == nil {
		return nil
	}
	return p.hello.GetSite()
}

// peerLocked returns the record of a peer, a new one if there is none.
func (n *Network) peerLocked(id policies.ReplicaID) *peer {
	p := n.peers[id]
	if p == nil {
		p = &peer{id: id, wake: make(chan struct{}, 1), streams: make(map[uint64]*incoming)}
		n.peers[id] = p
	}
	return p
}

// removeIfUnusedLocked forgets a peer that nobody names, watches or talks with.
func (n *Network) removeIfUnusedLocked(p *peer) {
	if !p.listed && !p.watched && !p.streaming && len(p.streams) == 0 {
		delete(n.peers, p.id)
	}
}

// wakeLiveness wakes the watch.
func (n *Network) wakeLiveness() {
	select {
	case n.livenessWake <- struct{}{}:
	default:
	}
}

// hello introduces this process.
func (n *Network) hello() *api.Hello {
	return &api.Hello{MarketVersion: MarketVersion, TransferMin: TransferMin, TransferMax: TransferMax, Incarnation: n.cfg.Incarnation, Site: n.cfg.Site()}
}
