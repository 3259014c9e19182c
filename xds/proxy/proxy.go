package proxy

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// Proxy is one data plane. Run is called once; the other methods may be called
// from anywhere.
type Proxy struct {
	cfg      Config
	client   *routing.Client
	metrics  *metrics
	replicas *replicas
	paths    []publicPath
	buffers  bufferPool // of request bodies
	chunks   sync.Pool  // *[]byte for copying responses
	state    atomic.Pointer[state]

	applied, ready          chan struct{} // closed when there is a plan, and when it is served
	appliedOnce, retireOnce sync.Once
	retire                  chan struct{} // closed by Retire
	addr                    atomic.Pointer[net.Addr]

	inflight  sync.WaitGroup // handlers
	active    atomic.Int64   // their number
	begun     atomic.Uint64  // the number of handlers that ever began
	accessLog *accessLog
}

var _ routing.Watcher = (*Proxy)(nil)

// New checks the config. It starts nothing.
func New(cfg Config) (*Proxy, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	p := &Proxy{
		cfg: cfg, replicas: newReplicas(cfg.ReplicaTLS), paths: publicPaths(),
		applied: make(chan struct{}), ready: make(chan struct{}), retire: make(chan struct{}),
	}
	p.buffers.budget, p.buffers.leastPace = httpserver.NewBudget(cfg.BodyMemory), httpserver.BytesAt(cfg.BodyRate)
	cfg.Client.Watcher, cfg.Client.OnStream = p, p.reportLoads
	var err error
	if p.client, err = routing.New(cfg.Client); err != nil {
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
// has ended, and its last HTTP/1 connection.
func (p *Proxy) Run(ctx context.Context) error {
	go p.accessLog.run() // close ends it
	g, ctx := errgroup.WithContext(ctx)
	// A retired proxy still routes, so that the client runs until the listener ends.
	configured, stop := context.WithCancel(ctx)
	defer stop()
	g.Go(func() error { return p.client.Run(configured) })
	g.Go(func() error { defer stop(); p.listen(ctx); return nil })
	err := g.Wait()
	p.inflight.Wait()
	p.replicas.close()
	p.accessLog.close()
	return err
}

// Retire ends Run some seconds after the last request, however long its stream takes: another process
// serves the address from now on. Requests on open connections are served, and each client is asked
// to use another connection (Connection: close, GOAWAY). HTTP/1 connections are left to their clients to close,
// until none of them was used for ten minutes.
func (p *Proxy) Retire() { p.retireOnce.Do(func() { close(p.retire) }) }

func (p *Proxy) retiring() bool {
	select {
	case <-p.retire:
		return true
	default:
		return false
	}
}

// Ready is closed when the proxy serves its first plan.
func (p *Proxy) Ready() <-chan struct{} { return p.ready }

// Addr returns where the proxy serves; nil while it does not.
func (p *Proxy) Addr() net.Addr {
	if a := p.addr.Load(); a != nil {
		return *a
	}
	return nil
}

// Snapshot returns the newest plan.
func (p *Proxy) Snapshot() *routing.Snapshot { return p.client.Snapshot() }

// Connected reports whether the control plane is there. The proxy serves
// without it.
func (p *Proxy) Connected() bool { return p.client.Connected() }
