package control

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"crypto/tls"
)

// Bounds of the gRPC server. Envoy's first request is 61 KB; a front's report
// has a few kilobytes.
const (
	maxRequest = 4 << 20
	// maxStreams bounds the streams of one connection. It is above what an xDS
	// node may have (serve.Limits), whose further streams are to be refused, not
	// to wait; the length service has its own bound.
	maxStreams = 2048
	// pingAfter and pingTimeout find dead peers; minPing is how often peers
	// may look for us.
	pingAfter   = 30 * time.Second
	pingTimeout = 5 * time.Second
	minPing     = 5 * time.Second
	// handshakeTimeout bounds TLS and HTTP/2 set-up of a connection.
	handshakeTimeout = 10 * time.Second
	maxHeaderList    = 16 << 10
)

// serverOptions are the options of a gRPC server; nil TLS is plain text. What
// extra sets, wins.
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
