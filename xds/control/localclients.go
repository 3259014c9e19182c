package control

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// localClients restricts clients that connect over TCP in plain text, as any user of the host can. They may only
// follow the configuration, and not under the node id of a listed proxy, so that their NACKs do not count. The fleet's
// own components connect by Config.Local, whose listener checks their users.
type localClients struct{ isProxy func(node string) bool }

// options returns the interceptors of the gRPC server.
func (l localClients) options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainStreamInterceptor(l.stream)} // the only unary service is that of health
}

// isVerified reports whether a call came over the Unix socket, whose listener has checked its user.
func isVerified(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	return ok && p.Addr.Network() == "unix"
}

func (l localClients) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	switch {
	case isVerified(ss.Context()), strings.HasPrefix(info.FullMethod, "/grpc.health.v1."),
		info.FullMethod == extprocv3.ExternalProcessor_Process_FullMethodName: // lengths are computed for all local proxies
		return handler(srv, ss)
	case !strings.HasPrefix(info.FullMethod, "/envoy.service.") || !strings.Contains(info.FullMethod, "DiscoveryService/"):
		return refuseLocal("%s", info.FullMethod)
	}
	s := &unverifiedStream{ServerStream: ss, clients: l}
	err := handler(srv, s)
	if refusal := s.refusal.Load(); refusal != nil { // the service may take it for the client's end of the stream
		return *refusal
	}
	return err
}

func refuseLocal(format string, args ...any) error {
	return status.Error(codes.PermissionDenied, fmt.Sprintf(format, args...)+": over TCP any user of the host could call: connect by the Unix socket of control.socket")
}

// unverifiedStream refuses messages in the name of a listed proxy.
type unverifiedStream struct {
	grpc.ServerStream
	clients localClients
	refusal atomic.Pointer[error]
}

// RecvMsg implements grpc.ServerStream.
func (s *unverifiedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if n, ok := m.(interface{ GetNode() *corev3.Node }); ok && s.clients.isProxy(n.GetNode().GetId()) {
		err := refuseLocal("node %.80q is a proxy of the fleet", n.GetNode().GetId())
		s.refusal.Store(&err)
		return err
	}
	return nil
}
