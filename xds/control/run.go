package control

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cascadeinfer/cascade/xds/api"
)

// Run serves until ctx ends, then ends the streams, closes the sockets and
// returns nil. An error means that it could not begin, or that a socket
// failed.
func (c *Control) Run(ctx context.Context) error {
	defer c.Close()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.cache.Run(ctx) })
	g.Go(func() error { return c.publisher.Run(ctx) })
	g.Go(func() error { return c.fleet.Run(ctx) })
	g.Go(func() error { return c.keeper.run(ctx) })
	c.serveGRPC(ctx, g)
	c.serveAdmin(ctx, g)
	c.log.Info("control plane listens", "grpc", c.Addr().String(), "admin", c.AdminAddr().String())
	return g.Wait()
}

// serveGRPC starts the servers of xDS, reports and lengths.
func (c *Control) serveGRPC(ctx context.Context, g *errgroup.Group) {
	var extra []grpc.ServerOption
	if c.length != nil && c.lengthListener == nil {
		extra = c.length.Options()
	}
	if c.binder != nil {
		extra = append(extra, c.binder.Options()...)
	}
	server := grpc.NewServer(serverOptions(c.cfg.TLS, extra...)...)
	c.xds.Register(ctx, server)
	c.loads.register(server)
	c.loads.run(ctx, g)
	api.RegisterFleetServer(server, c.fleet.Service())
	api.RegisterModulesServer(server, newModuleService(c.keeper, c.cfg.Modules))
	healthv1.RegisterHealthServer(server, c.health)
	if c.length != nil && c.lengthListener == nil {
		c.length.Register(server)
	}
	c.serve(ctx, g, server, c.listener)
	if c.lengthListener != nil {
		alone := grpc.NewServer(c.length.Options()...)
		c.length.Register(alone)
		c.serve(ctx, g, alone, c.lengthListener)
	}
}

// serve runs a gRPC server until ctx ends. The streams of this program's own
// services end with ctx; what others hold open is cut after the stop time.
func (c *Control) serve(ctx context.Context, g *errgroup.Group, server *grpc.Server, l net.Listener) {
	g.Go(func() error {
		err := server.Serve(l)
		if errors.Is(err, grpc.ErrServerStopped) && ctx.Err() != nil {
			return nil // it was over before it began
		}
		return err
	})
	g.Go(func() error {
		<-ctx.Done()
		c.health.Shutdown()
		cut := time.AfterFunc(c.cfg.Stop, server.Stop)
		defer cut.Stop()
		server.GracefulStop()
		return nil
	})
}

// serveAdmin runs the admin server until ctx ends.
func (c *Control) serveAdmin(ctx context.Context, g *errgroup.Group) {
	server := c.adminServer()
	g.Go(func() error {
		if err := server.Serve(c.admin); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		// The parent is over; the time to stop is the server's own.
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.Stop)
		defer cancel()
		if server.Shutdown(stop) != nil {
			return server.Close()
		}
		return nil
	})
}
