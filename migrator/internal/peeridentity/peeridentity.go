// Package peeridentity holds what the servers of a migrator share when they check who a
// peer is: the certificate and the address of a gRPC stream, and how often a refused peer is logged.
package peeridentity

import (
	"context"
	"crypto/x509"
	"net"
	"sync"
	"time"

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

// LogInterval is the minimum time between two logs of refused peers.
const LogInterval = time.Minute

// LogLimiter limits how often refusals are logged: a peer can be refused as often as it
// likes. The zero value is ready to use, and safe for concurrent use.
type LogLimiter struct {
	mu   sync.Mutex
	last time.Time
}

// Allow reports whether a refusal may be logged now, and counts it as logged if so.
func (l *LogLimiter) Allow() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.last) < LogInterval {
		return false
	}
	l.last = time.Now()
	return true
}
