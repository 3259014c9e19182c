package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cascadeinfer/cascade/internal/identity"
)

// Bounds of the connections between migrators.
const (
	dialTimeout = 5 * time.Second // with the handshake
	maxIdle     = 1024            // connections to one peer
	idleTimeout = time.Minute
)

// ServerConfig returns the configuration of a server that requires a certificate
// of the fleet's authorities and speaks the given ALPN protocols; nil for plain
// text. The server's handlers verify the client's identity.
func (k *Provider) ServerConfig(protocols ...string) *tls.Config {
	if k == nil {
		return nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			m := k.files.current()
			return &tls.Config{
				MinVersion:   tls.VersionTLS13,
				NextProtos:   protocols,
				Certificates: []tls.Certificate{m.cert},
				ClientAuth:   tls.RequireAndVerifyClientCert,
				ClientCAs:    m.roots,
			}, nil
		},
	}
}

// WrapListener returns l as a TLS listener for HTTP; l itself for plain text.
func (k *Provider) WrapListener(l net.Listener) net.Listener {
	if k == nil {
		return l
	}
	return tls.NewListener(l, k.ServerConfig("h2", "http/1.1"))
}

// ControlClientConfig returns the configuration of a client of the control plane
// at address, host:port; nil for plain text.
func (k *Provider) ControlClientConfig(address string) *tls.Config {
	return k.clientConfig(address, identity.Matcher{Role: identity.Control})
}

// MigratorClientConfig returns the configuration of a client of a replica's
// migrator at address, host:port; nil for plain text.
func (k *Provider) MigratorClientConfig(replica, address string) *tls.Config {
	return k.clientConfig(address, identity.Matcher{Role: identity.Migrator, Name: replica})
}

// ReplicaClientConfig returns the configuration of a proxy that connects to the migrator of any replica at address;
// nil for plain text.
func (k *Provider) ReplicaClientConfig(address string) *tls.Config {
	return k.clientConfig(address, identity.Matcher{Role: identity.Migrator})
}

// clientConfig returns the configuration of a client of a component. The server's
// certificate must chain to the authorities that are current at the handshake.
// With a trust domain it must also have the component's identity, at whatever
// address; without one it must carry the dialled host.
func (k *Provider) clientConfig(address string, want identity.Matcher) *tls.Config {
	if k == nil {
		return nil
	}
	want.TrustDomain = k.cfg.Self.TrustDomain
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: host,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &k.files.current().cert, nil
		},
		// The roots rotate, so VerifyConnection replaces the built-in verification
		// against a fixed pool by the same verification against the current one. The
		// name is the dialled one: the connection's state has none for an IP address.
		InsecureSkipVerify: true, // #nosec G402 -- VerifyConnection does it
		VerifyConnection: func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 0 {
				return errors.New("the server presented no certificate")
			}
			opts := x509.VerifyOptions{Roots: k.files.current().roots, Intermediates: x509.NewCertPool()}
			if want.TrustDomain == "" {
				opts.DNSName = host
			}
			for _, c := range cs.PeerCertificates[1:] {
				opts.Intermediates.AddCert(c)
			}
			if _, err := cs.PeerCertificates[0].Verify(opts); err != nil {
				return refused(address, cs.PeerCertificates[0], err)
			}
			if want.TrustDomain == "" {
				return nil
			}
			if _, err := want.CheckCertificate(cs.PeerCertificates[0]); err != nil {
				return fmt.Errorf("%s: %w", address, err)
			}
			return nil
		},
	}
}

// TransportCredentials returns gRPC credentials for a client configuration; nil
// stands for plain text.
func TransportCredentials(c *tls.Config) credentials.TransportCredentials {
	if c == nil {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(c)
}

// PeerTransport returns a transport of HTTP requests to other migrators, and the
// URL scheme to use; nil and "" stand for plain HTTP. If the other migrator refuses the own
// certificate, the error says so. owner returns the replica at
// an address, "" for none; with a trust domain, connections to an address without
// a replica fail.
func (k *Provider) PeerTransport(owner func(address string) string) (http.RoundTripper, string) {
	if k == nil {
		return nil, ""
	}
	dialer := &net.Dialer{Timeout: dialTimeout}
	return &http.Transport{
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			replica := owner(address)
			if replica == "" && k.cfg.Self.TrustDomain != "" {
				return nil, fmt.Errorf("no replica is known at %s, so its identity cannot be verified", address)
			}
			conn, err := (&tls.Dialer{NetDialer: dialer, Config: k.MigratorClientConfig(replica, address)}).DialContext(ctx, network, address)
			explain := func(err error) error { return k.explain(address, err) }
			if err != nil {
				return nil, explain(err)
			}
			return &explainingConn{Conn: conn, explain: explain}, nil
		},
		DisableCompression:  true,
		MaxIdleConnsPerHost: maxIdle,
		IdleConnTimeout:     idleTimeout,
	}, "https"
}
