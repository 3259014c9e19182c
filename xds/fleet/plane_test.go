package fleet

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/memgrpc"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/internal/reports"
)

// plane is a control plane. It is a Publisher that records the last snapshot.
type plane struct {
	*Fleet
	t    *testing.T
	api  api.FleetClient
	log  testkit.Log
	seen int // bytes of log that were printed
	end  func()
	dead bool // killed: its writes fail

	mu   sync.Mutex
	last *Snapshot
}

// Publish implements Publisher.
func (p *plane) Publish(s *Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last != nil && s.Epoch < p.last.Epoch {
		p.t.Errorf("%s publishes epoch %d after %d", p.cfg.Name, s.Epoch, p.last.Epoch)
	}
	p.last = s
}

func (p *plane) published() *Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// start starts a control plane behind a server.
func (w *world) start(name string, list []policies.Replica, shared, counters bool) {
	rules := testRules(PolicyDefault)
	rules.Name, rules.Shared = name, shared
	p := &plane{t: w.t}
	cfg := Config{
		Rules: rules, Replicas: list, Store: connection{&w.store, p}, Publisher: p,
		Logger: slog.New(slog.NewTextHandler(&p.log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if counters {
		cfg.Counters = w.store.Counters("a")
	}
	f, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	p.Fleet = f
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f.Run(ctx); err != nil {
			w.printError(err)
		}
	})
	server := grpc.NewServer()
	api.RegisterFleetServer(server, f.Service())
	conn, stop := memgrpc.Serve(w.t, server)
	p.api = api.NewFleetClient(conn)
	p.end = func() {
		cancel()
		synctest.Wait()
		conn.Close()
		stop()
		wg.Wait()
		if err := f.Order(context.Background(), fleetstate.Drain{Replica: "r0"}); !errors.Is(err, reports.ErrStopped) {
			w.t.Errorf("an order to a control plane that has ended: %v", err)
		}
	}
	w.planes[name] = p
}
