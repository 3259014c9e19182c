// Package peeridentity returns the certificate and the address of a gRPC stream's peer.
package peeridentity

import (
	"context"
	"crypto/x509"
	"net"

	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"
)

// Certificate returns the certificate of a gRPC stream's peer, nil for none.
func Certificate(ctx context.Context) *x509.Certificate {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return nil
	}
	return info.State.PeerCertificates[0]
}

// Address returns the address of a gRPC stream's peer, nil if it is not known.
func Address(ctx context.Context) net.Addr {
	if p, ok := grpcpeer.FromContext(ctx); ok {
		return p.Addr
	}
	return nil
}
