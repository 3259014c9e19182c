package control

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	loadstatsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/server"
)

// Bounds of the gRPC server. Envoy's first request has 61 KB; a migrator's load
// report has a few kilobytes.
const (
	maxRequest = 4 << 20
	// maxStreams bounds the streams of one connection. It is above what an xDS
	// node may have (server.Limits), whose further streams are to be refused
	// instead of waiting; the length service has its own bound.
	maxStreams = 2048
	// pingAfter and pingTimeout detect dead peers; minPing is the shortest interval of
	// a client's own pings, below that of Envoys (resources.HTTP2Options): a client
	// that pings more often while it gets no messages is disconnected.
	pingAfter   = 30 * time.Second
	pingTimeout = 5 * time.Second
	minPing     = time.Second
	// handshakeTimeout bounds the TLS and HTTP/2 setup of a connection.
	handshakeTimeout = 10 * time.Second
	maxHeaderList    = 16 << 10
)

// serverOptions returns the options of a gRPC server; nil TLS is plain text.
// extra overrides the others.
func serverOptions(tls *tls.Config, extra ...grpc.ServerOption) []grpc.ServerOption {
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaderList),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	}
	if tls != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(tls)))
	}
	return append(opts, extra...)
}

// serveGRPC starts the servers of xDS, load reports and lengths.
func (c *Control) serveGRPC(ctx context.Context, g *errgroup.Group) {
	extra := server.Options()
	if c.length != nil && c.lengthListener == nil {
		extra = append(extra, c.length.Options()...)
	}
	if c.auth != nil {
		extra = append(extra, c.auth.Options()...)
	}
	if c.cfg.Local != nil {
		extra = append(extra, localClients{c.isProxy}.options()...)
	}
	server := grpc.NewServer(serverOptions(c.cfg.TLS, extra...)...)
	c.xds.Register(ctx, server)
	loadstatsv3.RegisterLoadReportingServiceServer(server, c.loads.service)
	g.Go(func() error { return c.loads.service.Run(ctx) })
	api.RegisterFleetServer(server, c.fleet.Service())
	api.RegisterModulesServer(server, newModuleService(c.slots, c.cfg.Store))
	healthv1.RegisterHealthServer(server, c.health)
	if c.length != nil && c.lengthListener == nil {
		c.length.Register(server)
	}
	c.serve(ctx, g, server, c.listener)
	if c.cfg.Local != nil {
		c.serve(ctx, g, server, c.cfg.Local)
	}
	if c.lengthListener != nil {
		alone := grpc.NewServer(c.length.Options()...)
		c.length.Register(alone)
		c.serve(ctx, g, alone, c.lengthListener)
	}
}

// serve runs a gRPC server until ctx ends. The streams of this program's own
// services end with ctx; other open streams are cut after the stop time.
func (c *Control) serve(ctx context.Context, g *errgroup.Group, server *grpc.Server, l net.Listener) {
	g.Go(func() error {
		err := server.Serve(l)
		if errors.Is(err, grpc.ErrServerStopped) && ctx.Err() != nil {
			return nil // stopped before it began to serve
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
