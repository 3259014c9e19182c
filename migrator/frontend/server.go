package frontend

import (
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/loadtracker"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// Server is the front end of one replica: the HTTP server that owns its clients'
// streams. Its methods are safe for concurrent use. It serves while Run runs.
type Server struct {
	// Fixed after New.
	cfg       Config
	engine    *url.URL
	log       *slog.Logger
	tracker   *loadtracker.Tracker
	local     *http.Transport // to the engine
	probe     *http.Transport // to the engine's health check
	peers     http.RoundTripper
	templates templateCache
	// The memory of clients' requests, and that of peers' legs: what clients send must not
	// keep the streams of other replicas from going on here.
	bodies, peerBodies *httpserver.Budget
	answers            *httpserver.Budget // the memory of answers that are read ahead
	// engineFingerprint is the engine's system_fingerprint, nil until it was seen.
	engineFingerprint atomic.Pointer[[]byte]
	engineLimits      atomic.Pointer[engineLimits] // nil until the engine was asked
	engineFacts       *engineFacts

	ready          atomic.Bool   // the engine answers its health check
	changed        chan struct{} // holds a token when ready or draining has changed
	probeRequested chan struct{} // holds a token when the engine should be probed
	drain          chan struct{} // closed by Drain
	drainOne       sync.Once
	retire         chan struct{} // closed by Retire
	retired        sync.Once

	probesBegun atomic.Uint64 // health checks that have begun
	probePassed atomic.Uint64 // the number of the last one that the engine passed, in the order in which they began
	brought     atomic.Uint64 // tokens and whole answers that have come from the engine
	givenUp     atomic.Uint64 // streams that the engine did not go on with although it had room
	// transferred is when KV last travelled from or to the engine; nil: never.
	transferred atomic.Pointer[time.Time]
	hung        atomic.Bool   // the engine makes no progress; see enginestate.Monitor
	hangs       atomic.Uint64 // how often it was
	received    atomic.Uint64 // requests of clients, refused ones included
	turnedAway  atomic.Uint64 // requests of clients answered with 429
	service     serviceCounts // how clients were served
	crowded     atomic.Bool   // the engine may have preempted requests
	unread      atomic.Int64  // answers of the engine that wait for clients which do not read
	unreadCut   atomic.Uint64 // answers that were cut because their clients did not read

	prefixes        *loadtracker.Prefixes // that the own engine holds
	texts           *loadtracker.Texts    // of prompts, whose tokens are known
	tokenizer       *tokenizer
	estimatesCached atomic.Bool // the engine has reported no cached tokens, and prompts began like former ones
	cachedLog       sync.Once

	backoffs       backoffs               // after handoffs that failed
	pulling        chan struct{}          // one token for each pull of a prompt's beginning
	pulls          pullCounts             // of prompts' beginnings
	prefills       pullCounts             // of prompts that prefill replicas compute
	admission      *admittedWork          // by the own engine
	textCalls      *textCalls             // of the own engine's HTTP server
	inFlight       *inFlight              // requests admitted, those without a Stream included
	clientRequests atomic.Int64           // requests of its own clients in progress
	loadHeader     atomic.Pointer[string] // the load that answers report; nil for none

	mu         sync.Mutex
	streams    map[string]*Stream // by id
	localLegs  map[*localLeg]struct{}
	lastStream uint64 // number of the latest stream
}

// New returns a Server; it starts nothing. The error names the field of the
// configuration that is wrong.
func New(cfg Config) (*Server, error) {
	cfg, engine, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	srv := &Server{
		cfg:            cfg,
		engine:         engine,
		log:            cfg.Logger.With("replica", string(cfg.Replica)),
		tracker:        loadtracker.New(loadtracker.Config{Edges: cfg.Edges, Counter: partition.NewFlowCounter(cfg.Edges, cfg.FlowTau.Seconds()), Recent: recentWindow}),
		local:          newTransport(cfg),
		probe:          &http.Transport{DialContext: cfg.Dial, DisableKeepAlives: true, DisableCompression: true},
		peers:          cfg.Peers,
		bodies:         httpserver.NewBudget(cfg.MaxBodies),
		peerBodies:     httpserver.NewBudget(cfg.MaxBodies),
		answers:        httpserver.NewBudget(cfg.MaxBodies),
		changed:        make(chan struct{}, 1),
		probeRequested: make(chan struct{}, 1),
		drain:          make(chan struct{}),
		retire:         make(chan struct{}),
		streams:        make(map[string]*Stream),
		localLegs:      make(map[*localLeg]struct{}),
		inFlight:       newInFlight(),
		prefixes:       loadtracker.NewPrefixes(cfg.KVTokens),
		texts:          loadtracker.NewTexts(cfg.KVTokens),
		tokenizer:      newTokenizer(),
		admission:      newAdmittedWork(cfg),
		textCalls:      newTextCalls(cfg.Overload.TenantHeader != ""),
		engineFacts:    newEngineFacts(cfg),
		pulling:        make(chan struct{}, cfg.maxPulls()),
		// No two processes of a replica give a stream the same id.
		lastStream: uint64(time.Now().UnixMicro()),
	}
	if srv.peers == nil {
		peers := newTransport(cfg)
		peers.DialContext = cfg.DialPeer
		srv.peers = peers
	}
	return srv, nil
}

// Handler returns the handler for clients: what the proxies send to the
// replica's address.
func (srv *Server) Handler() http.Handler {
	answered := srv.withAnswer(srv.cfg.WriteTimeout, srv.withClientIdentity(gate{srv, srv.clientRoutes(), srv.bodies, srv.cfg.MaxBody, &srv.received}))
	return srv.withLoadHeaders(httpserver.Handler(answered))
}

// PeerHandler returns the handler for other migrators: for their gRPC, and for
// their legs.
func (srv *Server) PeerHandler() http.Handler {
	// A peer's front end cuts its slow client first: a leg that was cut here would look like a lost engine. The token
	// ids of a prompt are longer than its text, so a leg may take the whole budget.
	legs := httpserver.Handler(srv.withAnswer(2*srv.cfg.WriteTimeout, srv.withPeerIdentity(gate{srv, srv.peerRoutes(), srv.peerBodies, srv.cfg.MaxBodies, new(atomic.Uint64)})))
	if srv.cfg.PeerRPC == nil {
		return legs
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Control streams live as long as their connections. A drain does not
		// wait for them, and their clients may read nothing.
		if kind := r.Header.Get("Content-Type"); r.ProtoMajor == 2 && strings.HasPrefix(kind, "application/grpc") {
			srv.cfg.PeerRPC.ServeHTTP(w, r)
			return
		}
		legs.ServeHTTP(w, r)
	})
}

// Drain makes the server refuse new requests. Run returns when those in progress
// have ended, or after DrainTimeout.
func (srv *Server) Drain() {
	srv.drainOne.Do(func() {
		close(srv.drain)
		srv.notifyChanged()
	})
}

// Retire ends the server as Drain does when another process serves its address
// from now on, so that no client is refused: requests on open connections are
// served, and each client is asked to use another connection (Connection: close,
// GOAWAY). For five minutes HTTP/1 connections are left to their clients to close.
func (srv *Server) Retire() {
	srv.retired.Do(func() { close(srv.retire) })
}

// Changed returns a channel that holds a token after Status's EngineReady or
// Draining has changed. It is for one reader.
func (srv *Server) Changed() <-chan struct{} { return srv.changed }

func (srv *Server) notifyChanged() {
	select {
	case srv.changed <- struct{}{}:
	default:
	}
}

// setReady records the engine's health.
func (srv *Server) setReady(ready bool) {
	if srv.ready.Swap(ready) != ready {
		srv.notifyChanged()
	}
}

// evacuate cancels the requests on the own engine that another engine can begin or
// continue.
func (srv *Server) evacuate() {
	srv.cancelLegs(errEngineAway, func(r *localLeg) bool { return !r.work.Begun() || r.rescuable() })
}

func (srv *Server) draining() bool { return isClosed(srv.drain) }
func (srv *Server) retiring() bool { return isClosed(srv.retire) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Status is what a server reports about its replica.
type Status struct {
	Load policies.Load
	Flow policies.Flow
	// Snapshot is the requests in flight by bucket of Config.Edges.
	Snapshot    []policies.Batch
	EngineReady bool
	// EngineHung says that the engine is away because it makes no progress, and
	// EngineHangs is how often it was.
	EngineHung  bool
	EngineHangs uint64
	// EngineProblem says why an engine that answers is not ready: it is not the one that
	// the configuration says. It is usually empty.
	EngineProblem string
	// Engine is what is known of the engine, and CapacityWarning says how its KV cache
	// differs from the configuration; usually empty.
	Engine          engineinfo.Info
	CapacityWarning string
	Draining        bool
	// CachedEstimated says that the engine reports no cached tokens, so that Flow's
	// prefill is estimated from the prompts that it got.
	CachedEstimated bool
	// Prefixes is what is known of the prompts that the engine holds.
	Prefixes PrefixStatus
	// Refused is how many requests the own engine was not given because they would
	// have waited for too long.
	Refused uint64
	// TurnedAway is how many requests of clients were answered with 429: no replica that was asked
	// took them.
	TurnedAway uint64
	// Received is how many requests the listener for clients got, refused ones included and health
	// checks excluded.
	Received uint64
	// Service is how clients were served.
	Service Service
	// Unread is how many answers have used up their memory and wait for clients that read too
	// slowly. UnreadCut is how many such answers were cut.
	Unread    int
	UnreadCut uint64
	// BytesPerToken and EstimateError are as in loadtracker.State.
	BytesPerToken float64
	EstimateError float64
}

// Status returns the state of the replica now.
func (srv *Server) Status() Status {
	r := srv.tracker.State()
	return Status{
		Engine: srv.Engine(), EngineProblem: srv.engineFacts.problemText(), CapacityWarning: srv.engineFacts.capacityWarning(),
		Load: srv.engineFacts.addLoad(r.Load, time.Now()), Flow: r.Flow, Snapshot: r.Snapshot, BytesPerToken: r.BytesPerToken, EstimateError: r.EstimateError,
		Prefixes:    srv.PrefixStatus(),
		EngineReady: srv.ready.Load(), EngineHung: srv.hung.Load(), EngineHangs: srv.hangs.Load(), Draining: srv.draining(), Refused: srv.admission.refused(), TurnedAway: srv.turnedAway.Load(), Service: srv.service.read(),
		Received: srv.received.Load(),
		Unread:   int(srv.unread.Load()), UnreadCut: srv.unreadCut.Load(), CachedEstimated: srv.estimatesCached.Load(),
	}
}

// HeldPrefixes returns what the engine's KV events are to be applied to, as by a kvevents.Subscriber.
func (srv *Server) HeldPrefixes() *loadtracker.Prefixes { return srv.prefixes }

// EachStream calls do for the streams of this server's clients, in no order,
// until do returns false. Streams may end meanwhile.
func (srv *Server) EachStream(do func(*Stream) bool) {
	srv.mu.Lock()
	all := slices.Collect(maps.Values(srv.streams))
	srv.mu.Unlock()
	for _, s := range all {
		if !do(s) {
			return
		}
	}
}

// stream returns the stream of that id, nil for none.
func (srv *Server) stream(id string) *Stream {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	return srv.streams[id]
}

// inFlight counts requests in progress.
type inFlight struct {
	requests atomic.Int64
	idle     chan struct{} // holds a token when requests has become 0
}

func newInFlight() *inFlight { return &inFlight{idle: make(chan struct{}, 1)} }

func (f *inFlight) begin() { f.requests.Add(1) }

func (f *inFlight) end() {
	if f.requests.Add(-1) > 0 {
		return
	}
	select {
	case f.idle <- struct{}{}:
	default:
	}
}

// isIdle reports whether no request is in progress.
func (f *inFlight) isIdle() bool { return f.requests.Load() == 0 }

// wait returns when no request is in progress, or when alarm is closed.
func (f *inFlight) wait(alarm <-chan struct{}) {
	for !f.isIdle() {
		select {
		case <-f.idle:
		case <-alarm:
			return
		}
	}
}

// probeNow makes Run check the engine's health now.
func (srv *Server) probeNow() {
	select {
	case srv.probeRequested <- struct{}{}:
	default:
	}
}

func (srv *Server) serveHealth(w http.ResponseWriter, _ *http.Request, _ []byte, _ *httpserver.Share) {
	status := http.StatusOK
	if srv.draining() || !srv.ready.Load() {
		status = http.StatusServiceUnavailable
	}
	w.WriteHeader(status)
}

// newTransport returns the transport for one engine, or for peers. Its buffers
// are small because each stream holds two and a token is smaller still. An answer
// must begin within the idle timeout.
func newTransport(cfg Config) *http.Transport {
	return &http.Transport{
		DialContext:           cfg.Dial,
		DisableCompression:    true,
		MaxIdleConns:          1024,
		MaxIdleConnsPerHost:   1024,
		IdleConnTimeout:       engineIdleConn,
		ReadBufferSize:        1 << 10,
		WriteBufferSize:       1 << 10,
		ExpectContinueTimeout: time.Second,
		ResponseHeaderTimeout: cfg.IdleTimeout,
	}
}
