package pickerserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cascadeinfer/cascade/xds/endpointpicker"
)

// Listen opens listeners on all addresses, or on none.
func Listen(addresses ...string) (out []net.Listener, err error) {
	for _, address := range addresses {
		l, err := net.Listen("tcp", address)
		if err != nil {
			for _, open := range out {
				open.Close()
			}
			return nil, fmt.Errorf("%w: --grpc-port, --grpc-health-port and --metrics-port choose others", err)
		}
		out = append(out, l)
	}
	return out, nil
}

// Servers are what Serve runs.
type Servers struct {
	Picker *endpointpicker.Server
	Health *health.Server // the one of the picker
	TLS    Credentials
	// GRPC serves the picker and its health, Probes the health alone, in plain text. Serve closes
	// both.
	GRPC, Probes net.Listener
	Drain        time.Duration
	// While are run as long as responses may need them, which is longer than the context of Serve.
	// Each must return when its context ends.
	While []func(context.Context) error
}

// Serve serves until ctx ends; then the health service reports that the picker does not serve,
// and responses go on until the last one has ended or for the time of Drain.
func (s Servers) Serve(ctx context.Context) error {
	options, while := s.Picker.Options(), s.While
	if s.TLS.config != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(s.TLS.config)))
	}
	if s.TLS.follow != nil {
		while = append(while, s.TLS.follow)
	}
	service := grpc.NewServer(options...)
	s.Picker.Register(service)
	healthpb.RegisterHealthServer(service, s.Health)
	probes := grpc.NewServer()
	healthpb.RegisterHealthServer(probes, s.Health)

	// What responses need outlives ctx until the last of them has ended.
	back, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, back := errgroup.WithContext(back)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(back, cancel)()
	defer context.AfterFunc(ctx, s.Health.Shutdown)()
	g.Go(func() error {
		defer stop()
		return serveGRPC(ctx, service, s.GRPC, s.Drain)
	})
	g.Go(func() error { return serveGRPC(back, probes, s.Probes, 0) })
	for _, run := range while {
		g.Go(func() error { return run(back) })
	}
	return g.Wait()
}

// serveGRPC serves on l, which it closes, until ctx ends, and then until the last stream has
// ended, or for the time of drain: what is left is cut.
func serveGRPC(ctx context.Context, server *grpc.Server, l net.Listener, drain time.Duration) error {
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		cut := time.AfterFunc(drain, server.Stop)
		defer cut.Stop()
		server.GracefulStop()
	})
	err := server.Serve(l)
	if stop() {
		return fmt.Errorf("gRPC server on %s: %w", l.Addr(), err)
	}
	<-stopped
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}
