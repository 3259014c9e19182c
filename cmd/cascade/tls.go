package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/credentials/tls/certprovider"
	"google.golang.org/grpc/credentials/tls/certprovider/pemfile"

	"github.com/cascadeinfer/cascade/cmd/config"
	"github.com/cascadeinfer/cascade/cmd/daemon"
)

// tlsRefresh is how often the PEM files are looked at again, so that rotated
// certificates are taken up without a restart.
const tlsRefresh = 10 * time.Second

// tlsTimeout bounds one look at the PEM files inside a handshake.
const tlsTimeout = 5 * time.Second

// Bounds of the connections between migrators under TLS.
const (
	peerDialTimeout = 5 * time.Second // the handshake included
	peerIdle        = 1024            // connections kept to one peer
	peerIdleTimeout = time.Minute
)

// identity is the mutual TLS of one process: both sides of its connections,
// from rotating files. A nil identity means plaintext, which components accept
// on loopback only.
type identity struct{ provider certprovider.Provider }

// newIdentity watches the files and looks at them again every so often; close
// stops that. It returns nil where the fleet file configures no TLS.
func newIdentity(c config.TLS, refresh time.Duration) (*identity, error) {
	if c.Cert == "" {
		return nil, nil
	}
	if err := readable(c); err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	p, err := pemfile.NewProvider(pemfile.Options{CertFile: c.Cert, KeyFile: c.Key, RootFile: c.CA, RefreshDuration: refresh})
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	id := &identity{provider: p}
	if _, err := id.material(); err != nil {
		p.Close()
		return nil, err
	}
	return id, nil
}

// readable says what is wrong with the files now. The provider would wait for
// better ones, and say nothing.
func readable(c config.TLS) error {
	if _, err := tls.LoadX509KeyPair(c.Cert, c.Key); err != nil {
		return fmt.Errorf("%s with %s: %w", c.Cert, c.Key, err)
	}
	roots, err := os.ReadFile(c.CA)
	if err != nil {
		return err
	}
	if !x509.NewCertPool().AppendCertsFromPEM(roots) {
		return fmt.Errorf("%s holds no PEM certificate", c.CA)
	}
	return nil
}

func (id *identity) close() {
	if id != nil {
		id.provider.Close()
	}
}

func (id *identity) material() (*certprovider.KeyMaterial, error) {
	ctx, cancel := context.WithTimeout(context.Background(), tlsTimeout)
	defer cancel()
	m, err := id.provider.KeyMaterial(ctx)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	if len(m.Certs) == 0 {
		return nil, errors.New("tls: the certificate file holds no certificate")
	}
	return m, nil
}

// server returns the configuration of a listener that demands a certificate
// of the fleet's authorities and speaks the given ALPN protocols; nil for
// plaintext.
func (id *identity) server(protocols ...string) *tls.Config {
	if id == nil {
		return nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			m, err := id.material()
			if err != nil {
				return nil, err
			}
			return &tls.Config{
				MinVersion:   tls.VersionTLS13,
				NextProtos:   protocols,
				Certificates: m.Certs,
				ClientAuth:   tls.RequireAndVerifyClientCert,
				ClientCAs:    m.Roots,
			}, nil
		},
	}
}

// client returns the configuration of a connection to the host of address,
// host:port; nil for plaintext. The peer's certificate must chain to the
// fleet's present authorities and carry that host.
func (id *identity) client(address string) *tls.Config {
	if id == nil {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: host,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			m, err := id.material()
			if err != nil {
				return nil, err
			}
			return &m.Certs[0], nil
		},
		// The roots rotate, so the built-in verification against a fixed pool
		// is replaced by the same verification against the present one. The
		// name is the dialled one: the connection's state has none where it is
		// an IP address.
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			m, err := id.material()
			if err != nil {
				return err
			}
			opts := x509.VerifyOptions{Roots: m.Roots, DNSName: host, Intermediates: x509.NewCertPool()}
			for _, c := range cs.PeerCertificates[1:] {
				opts.Intermediates.AddCert(c)
			}
			_, err = cs.PeerCertificates[0].Verify(opts)
			return err
		},
	}
}

// credentials are those of a gRPC connection to address.
func (id *identity) credentials(address string) credentials.TransportCredentials {
	if id == nil {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(id.client(address))
}

// listener wraps a listener of HTTP in the fleet's TLS; l itself for plaintext.
func (id *identity) listener(l net.Listener) net.Listener {
	if id == nil {
		return l
	}
	return tls.NewListener(l, id.server("h2", "http/1.1"))
}

// migrator is what a migrator opens by itself under the fleet's TLS; the zero
// value for plaintext.
func (id *identity) migrator() daemon.TLS {
	if id == nil {
		return daemon.TLS{}
	}
	t := daemon.TLS{Credentials: id.credentials, Server: id.server(), Client: id.client}
	t.Peers, t.PeerScheme = id.peers()
	return t
}

// peers carries requests to other migrators, and names the scheme to use; nil
// and "" stand for plain HTTP.
func (id *identity) peers() (http.RoundTripper, string) {
	if id == nil {
		return nil, ""
	}
	dialer := &net.Dialer{Timeout: peerDialTimeout}
	return &http.Transport{
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return (&tls.Dialer{NetDialer: dialer, Config: id.client(address)}).DialContext(ctx, network, address)
		},
		DisableCompression:  true,
		MaxIdleConnsPerHost: peerIdle,
		IdleConnTimeout:     peerIdleTimeout,
	}, "https"
}
