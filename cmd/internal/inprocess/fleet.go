// Package inprocess runs a whole fleet in one process: emulated engines, their migrators, the
// control plane and a data plane, which communicate over real loopback sockets and real xDS.
//
// New binds all sockets and builds the components, and Run runs them. Engines may be external, and
// the data plane may be a real Envoy.
//
// The components share no shortcuts: each could be a process of its own, and is one in production.
package inprocess

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/gpuset"
	"github.com/cascadeinfer/cascade/cmd/internal/headroom"
	"github.com/cascadeinfer/cascade/cmd/internal/localuser"
	"github.com/cascadeinfer/cascade/cmd/internal/migratord"
	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/loadreport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/proxy"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// Config describes the fleet to run.
type Config struct {
	// Fleet is the fleet. Addresses with port 0 get a free port. Required.
	Fleet wiring.Fleet
	// External means that the engines run elsewhere, at the URLs of the file.
	// Otherwise every engine is emulated at its URL.
	External bool
	// Envoy is the path of an Envoy binary to use as the data plane; empty means
	// the embedded proxy.
	Envoy string
	// GPUs access engines' pools in GPU memory; Run runs them, and the caller closes them
	// afterwards. nil rejects such engines.
	GPUs *gpuset.Set
	// Device is where the emulated engines keep their KV pools; it is gpuset.Host or
	// gpuset.CUDA, which needs GPUs. "" means gpuset.Host.
	Device string
	// Machine returns the hardware of this host, for migrators of real engines; see
	// migratord.Config. If it is nil, replicas report only the fleet file's topology.
	Machine func() *topology.Machine
	// Drain bounds how long streams continue once Run's context has ended; 0
	// means 10 s.
	Drain time.Duration
	// Room decides whether the process has resources for another request; nil admits all.
	Room   *headroom.Monitor
	Tracer trace.Tracer // creates the spans of migrations; nil creates none
	Logger *slog.Logger // nil discards

	hooks hooks
}

// hooks let tests intercept a running fleet. The zero value intercepts nothing.
type hooks struct {
	// listen opens the sockets; nil means net.Listen.
	listen func(network, address string) (net.Listener, error)
	// part runs a component under its name ("control", "engine r0", "front r0") until ctx ends; it
	// may stop the component earlier and run a replacement. nil means run(ctx).
	part func(ctx context.Context, name string, run func(context.Context) error) error
	// front changes the configuration of a front end; nil changes nothing.
	front func(*frontend.Config)
	// engine changes the configuration of an engine; nil changes nothing.
	engine func(*emulator.Config)
	// migrator changes the configuration of a migrator; nil changes nothing.
	migrator func(*migratord.Config)
	// control changes the configuration of the control plane; nil changes nothing.
	control func(*control.Config)
}

const defaultDrain = 10 * time.Second

// Fleet is a fleet before, during or after its run. Its methods may be called from any goroutine,
// Run only once.
type Fleet struct {
	cfg           Config
	log           *slog.Logger
	replicas      []replica
	control       *control.Control
	plane         *policyhost.Plane // the control plane's modules and rules
	host          *policyhost.Host  // the slots that all migrators share; nil without modules
	slotClient    *routing.Client   // follows the control plane for host
	controlConn   *grpc.ClientConn  // of the migrators to the control plane
	runtime       string            // directory of Unix sockets, removed at the end
	proxyListener net.Listener      // of the embedded proxy; nil with Envoy
	proxy         *proxy.Proxy      // nil with Envoy
	envoy         *envoyProcess
	address       string // of the data plane

	vocabulary *model.Vocabulary // shared by the engines
}

// replica is one engine and its migrator.
type replica struct {
	id       policies.ReplicaID
	engine   *emulator.Engine // nil where external
	listener net.Listener     // the engine's
	migrator *migratord.Daemon
}

// New binds every socket of the fleet and builds its components, but starts none of them. Call
// Close on a Fleet that is never run.
func New(cfg Config) (f *Fleet, err error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Drain == 0 {
		cfg.Drain = defaultDrain
	}
	if cfg.hooks.listen == nil {
		cfg.hooks.listen = net.Listen
	}
	f = &Fleet{cfg: cfg, log: cfg.Logger}
	tidy := f.release // f is nil if New fails
	var open []net.Listener
	defer func() {
		if err != nil {
			for _, l := range open {
				l.Close()
			}
			tidy()
			err = fmt.Errorf("local fleet: %w", err)
		}
	}()
	bind := func(field string, addr *string) (net.Listener, error) {
		l, err := cfg.hooks.listen(localuser.Network(*addr), *addr)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
		open = append(open, l)
		*addr = l.Addr().String()
		return l, nil
	}
	xds, err := bind("control.listen", &f.cfg.Fleet.Fleet.Control.Listen)
	if err != nil {
		return nil, err
	}
	if f.controlConn, err = grpc.NewClient(f.cfg.Fleet.OwnControlPlanes()[0], grpc.WithTransportCredentials(insecure.NewCredentials()), loadreport.ConnectParams()); err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	if f.runtime, err = os.MkdirTemp("", "cascade-"); err != nil {
		return nil, err
	}
	if err := f.newHost(); err != nil {
		return nil, err
	}
	if err := f.bindReplicas(bind); err != nil {
		return nil, err
	}
	if err := f.bindProxy(bind); err != nil {
		return nil, err
	}
	return f, f.bindControl(xds, bind)
}

// release releases what is neither a socket nor a component.
func (f *Fleet) release() {
	if f.controlConn != nil {
		f.controlConn.Close()
	}
	if f.runtime != "" {
		os.RemoveAll(f.runtime)
	}
}

// URL returns the base URL of the data plane, where clients connect.
func (f *Fleet) URL() string { return "http://" + f.address }

// AdminURL returns the base URL of the control plane's /status and /metrics.
func (f *Fleet) AdminURL() string { return "http://" + f.control.AdminAddr().String() }

// Control returns the control plane.
func (f *Fleet) Control() *control.Control { return f.control }

// Pace returns how all emulated engines together have kept to the schedules of their profiles.
func (f *Fleet) Pace() (sum emulator.Pace) {
	for _, n := range f.replicas {
		if n.engine != nil {
			sum = sum.Add(n.engine.Pace())
		}
	}
	return sum
}

// Ready waits until the data plane answers for every model.
func (f *Fleet) Ready(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if f.allModelsAnswer(ctx) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// allModelsAnswer reports whether the data plane reaches a replica of every model.
func (f *Fleet) allModelsAnswer(ctx context.Context) bool {
	for _, m := range f.cfg.Fleet.Models {
		if !f.modelAnswers(ctx, m) {
			return false
		}
	}
	return true
}

// modelAnswers reports whether the data plane answers for a model, by its host name if it has one,
// else by its name alone.
func (f *Fleet) modelAnswers(ctx context.Context, m config.Model) bool {
	method, path, body := http.MethodGet, "/v1/models", []byte(nil)
	if len(m.Hosts) == 0 && len(f.cfg.Fleet.Models) > 1 {
		name, err := json.Marshal(m.Name)
		if err != nil {
			return false
		}
		method, path = http.MethodPost, "/v1/completions"
		body = fmt.Appendf(nil, `{"model":%s,"prompt":"ready?","max_tokens":1}`, name)
	}
	req, err := http.NewRequestWithContext(ctx, method, f.URL()+path, bytes.NewReader(body))
	if err != nil {
		return false
	}
	if len(m.Hosts) > 0 {
		req.Host = m.Hosts[0]
	}
	req.Header.Set("content-type", "application/json")
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Run runs the fleet until ctx ends or a component fails, and returns when all
// of it has stopped. The data plane stops first, then the front ends, then the
// rest, so that running streams can end.
func (f *Fleet) Run(ctx context.Context) error {
	defer f.release()
	back, stopBack := context.WithCancel(context.WithoutCancel(ctx))
	middle, stopMiddle := context.WithCancel(back)
	defer stopBack()
	defer stopMiddle()
	edge, ectx := errgroup.WithContext(ctx)
	fronts, fctx := errgroup.WithContext(middle)
	base, bctx := errgroup.WithContext(back)

	base.Go(func() error { return f.runPart(bctx, "control", f.control.Run) })
	base.Go(func() error { return f.plane.Run(bctx) })
	if f.cfg.GPUs != nil {
		base.Go(func() error { return f.cfg.GPUs.Run(bctx) })
	}
	if f.host != nil {
		base.Go(func() error { return f.runHost(bctx) })
	}
	for _, n := range f.replicas {
		if n.engine != nil {
			base.Go(func() error {
				return f.runPart(bctx, "engine "+string(n.id), func(ctx context.Context) error { return runEngine(ctx, n.engine, n.listener) })
			})
		}
		fronts.Go(func() error {
			return f.runPart(fctx, "front "+string(n.id), n.migrator.Run)
		})
	}
	edge.Go(func() error { return f.runDataPlane(ectx) })
	// If a component behind the edge fails, the edge ends too.
	edge.Go(func() error { return waitForAny(ectx, bctx, fctx) })

	errEdge := edge.Wait()
	stopMiddle()
	errFronts := fronts.Wait()
	stopBack()
	var errs []error
	for _, err := range []error{errEdge, errFronts, base.Wait()} {
		// Stopping a component on purpose is no error.
		if ctx.Err() == nil || !errors.Is(err, context.Canceled) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// runPart runs a component of the fleet.
func (f *Fleet) runPart(ctx context.Context, name string, run func(context.Context) error) error {
	if f.cfg.hooks.part != nil {
		return f.cfg.hooks.part(ctx, name, run)
	}
	return run(ctx)
}

// runEngine runs an emulated engine and serves it on l.
func runEngine(ctx context.Context, e *emulator.Engine, l net.Listener) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.Run(ctx) })
	g.Go(func() error { return serveHTTP(ctx, l, e.Handler()) })
	return g.Wait()
}

// waitForAny waits until ctx or one of the contexts of the components behind it ends.
func waitForAny(ctx, base, fronts context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-base.Done():
		return context.Cause(base)
	case <-fronts.Done():
		return context.Cause(fronts)
	}
}

// runDataPlane runs the data plane.
func (f *Fleet) runDataPlane(ctx context.Context) error {
	if f.envoy != nil {
		return f.envoy.run(ctx)
	}
	return f.proxy.Run(ctx)
}

// serveHTTP serves an engine until ctx ends.
func serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)}
	defer context.AfterFunc(ctx, func() { srv.Close() })()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
