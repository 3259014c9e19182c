package identity

import (
	"context"
	"crypto/x509"
	"net"

	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"
)

// PeerCertificate returns the certificate of a gRPC stream's peer, nil for none.
func PeerCertificate(ctx context.Context) *x509.Certificate {
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

// PeerAddress returns the address of a gRPC stream's peer, nil if it is not known.
func PeerAddress(ctx context.Context) net.Addr {
	if p, ok := grpcpeer.FromContext(ctx); ok {
		return p.Addr
	}
	return nil
}
