package certs

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/cascadeinfer/cascade/internal/identity"
)

// alertTimeout bounds the wait for the alert of a server that has closed a connection.
const alertTimeout = time.Second

// ControlCredentials returns gRPC credentials for a client of the control plane at
// address, host:port. If the server refuses the own certificate, the error says so.
func (k *Provider) ControlCredentials(address string) credentials.TransportCredentials {
	return k.explaining(address, identity.Matcher{Role: identity.Control})
}

// MigratorCredentials is ControlCredentials for a replica's migrator.
func (k *Provider) MigratorCredentials(replica, address string) credentials.TransportCredentials {
	return k.explaining(address, identity.Matcher{Role: identity.Migrator, Name: replica})
}

func (k *Provider) explaining(address string, want identity.Matcher) credentials.TransportCredentials {
	c := TransportCredentials(k.clientConfig(address, want))
	if k == nil {
		return c
	}
	return explainingCredentials{c, func(err error) error { return k.explain(address, err) }}
}

// explain names the own certificate in the error of a server that has refused it.
func (k *Provider) explain(address string, err error) error {
	var remote *net.OpError // crypto/tls has no other mark of an alert
	if !errors.As(err, &remote) || remote.Op != "remote error" {
		return err
	}
	return fmt.Errorf("%s refused the own certificate %s of %s: %w", address, identity.Describe(k.files.current().cert.Leaf), k.cfg.Cert, err)
}

// explainingCredentials are the credentials of a client that explain why the server has
// refused it. Under TLS 1.3 the client's handshake ends before the server has seen its
// certificate, so the refusal comes with a later call: with a read, or as a broken pipe.
type explainingCredentials struct {
	credentials.TransportCredentials
	explain func(error) error
}

// ClientHandshake implements credentials.TransportCredentials.
func (c explainingCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, c.explain(err)
	}
	return &explainingConn{Conn: conn, explain: c.explain}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (c explainingCredentials) Clone() credentials.TransportCredentials {
	return explainingCredentials{c.TransportCredentials.Clone(), c.explain}
}

// explainingConn is a connection whose server may still refuse it.
type explainingConn struct {
	net.Conn
	explain  func(error) error
	accepted atomic.Bool // the server has sent something
}

// Read implements net.Conn.
func (c *explainingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	switch {
	case err == nil:
		if !c.accepted.Load() {
			c.accepted.Store(true)
		}
	case !c.accepted.Load():
		err = c.explain(err)
	}
	return n, err
}

// Write implements net.Conn. If the server has closed the connection, the error is the
// alert that it sent before.
func (c *explainingConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err == nil || c.accepted.Load() {
		return n, err
	}
	_ = c.Conn.SetReadDeadline(time.Now().Add(alertTimeout))
	if _, alert := c.Conn.Read(make([]byte, 1)); alert != nil {
		if explained := c.explain(alert); explained != alert {
			return n, explained
		}
	}
	return n, err
}

// refused returns the error for a server's certificate that its client does not accept.
func refused(address string, c *x509.Certificate, err error) error {
	return fmt.Errorf("%s has the certificate %s, which is not accepted: %w", address, identity.Describe(c), err)
}
