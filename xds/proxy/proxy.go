package proxy

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/policies/intake"
	"github.com/cascadeinfer/cascade/xds/client"
	"github.com/cascadeinfer/cascade/xds/internal/proxy/upstream"
)

// Proxy is one data plane. Run is called once; the other methods may be called
// from anywhere.
type Proxy struct {
	cfg     Config
	client  *client.Client
	metrics *metrics
	pools   *upstream.Pools
	buffers bufferPool // of request bodies
	chunks  sync.Pool  // *[]byte for copying responses
	state   atomic.Pointer[state]
	changed chan struct{} // a new state; capacity 1
	ready   chan struct{} // closed when the first listener serves
	once    sync.Once     // closes ready
	noTLS   sync.Once     // logs a listener without a certificate

	retire  chan struct{} // closed by Retire
	retired sync.Once

	inflight  sync.WaitGroup // handlers
	active    atomic.Int64   // their number
	begun     atomic.Uint64  // the number of handlers that ever began
	accessLog *accessLog

	mu    sync.Mutex
	addrs map[string]net.Addr // by listener
}

// New checks the config. It starts nothing.
func New(cfg Config) (*Proxy, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	p := &Proxy{
		cfg: cfg, pools: upstream.NewPools(),
		changed: make(chan struct{}, 1), ready: make(chan struct{}), retire: make(chan struct{}), addrs: make(map[string]net.Addr),
	}
	p.buffers.budget, p.buffers.leastPace = intake.NewBudget(cfg.BodyMemory), intake.BytesAt(cfg.BodyRate)
	p.state.Store(&state{})
	cfg.Client.Watcher = watcher{p, cfg.Client.Watcher}
	cfg.Client.OnStream = p.reportLoads
	var err error
	if p.client, err = client.New(cfg.Client); err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	if p.metrics, err = newMetrics(cfg.Registry, p.client.Connected); err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	p.accessLog = newAccessLog(cfg.Logger, p.metrics.unlogged)
	return p, nil
}

// Run serves until ctx ends, then stops accepting, lets streams finish for
// DrainTimeout, cuts the rest and returns nil. After Retire it returns when its last stream
// has ended.
func (p *Proxy) Run(ctx context.Context) error {
	go p.accessLog.run() // close ends it
	g, ctx := errgroup.WithContext(ctx)
	// A retired proxy still routes, so that the client runs until the listeners end.
	configured, stop := context.WithCancel(ctx)
	defer stop()
	g.Go(func() error { return p.client.Run(configured) })
	g.Go(func() error { defer stop(); return p.serveListeners(ctx) })
	err := g.Wait()
	p.inflight.Wait()
	p.pools.Close()
	p.accessLog.close()
	return err
}

// Retire ends Run some seconds after the last request, however long its stream takes: another process
// serves the addresses from now on. Requests on open connections are served, and each client is asked
// to use another connection (Connection: close, GOAWAY).
func (p *Proxy) Retire() { p.retired.Do(func() { close(p.retire) }) }

func (p *Proxy) retiring() bool {
	select {
	case <-p.retire:
		return true
	default:
		return false
	}
}

// Ready is closed when the listeners of the first configuration serve with their routes, or all that
// could be bound.
func (p *Proxy) Ready() <-chan struct{} { return p.ready }

// Addr returns where an LDS listener is bound, of any listener when name is
// empty; nil when none is.
func (p *Proxy) Addr(name string) net.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	if name != "" {
		return p.addrs[name]
	}
	for _, a := range p.addrs {
		return a
	}
	return nil
}

// Snapshot returns the configuration in use.
func (p *Proxy) Snapshot() *client.Snapshot { return p.client.Snapshot() }

// Connected reports whether the control plane is there. The proxy serves
// without it.
func (p *Proxy) Connected() bool { return p.client.Connected() }

// watcher takes snapshots from the client, and passes them on.
type watcher struct {
	p    *Proxy
	next client.Watcher
}

var _ client.Watcher = watcher{}

// Update puts a snapshot into use. It runs on the client's goroutine.
func (w watcher) Update(s *client.Snapshot) {
	w.p.apply(s)
	if w.next != nil {
		w.next.Update(s)
	}
}
