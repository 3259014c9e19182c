package tcp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
)

// serveReceiver serves one receiver until its connection or its lease ends. It closes the
// socket itself then, without the closing messages of TLS, which could block.
func (t *Transport) serveReceiver(ctx context.Context, socket net.Conn, admit func() error) error {
	if err := socket.SetDeadline(time.Now().Add(lease.HelloTimeout)); err != nil {
		return err
	}
	conn, cert, err := t.acceptTLS(ctx, socket)
	if err != nil {
		return err
	}
	held, err := t.Accept(conn, cert, admit, func(b []byte) error { _, err := conn.Write(b); return err })
	if err != nil {
		return err
	}
	defer held.End()
	defer held.CloseWhenDone(socket)()

	welcome, err := lease.AppendWelcome(nil, held.Memory.Layout, held.Memory.Size())
	if err != nil {
		return err
	}
	if _, err := conn.Write(welcome); err != nil {
		return err
	}
	w := &blockWriter{conn: conn, lease: held}
	return transport.CatchFault(w.serveAsks)
}

// acceptTLS runs the TLS handshake, if TLS is configured, and requires a certificate of
// the receiver, which it returns.
func (t *Transport) acceptTLS(ctx context.Context, socket net.Conn) (net.Conn, *x509.Certificate, error) {
	if t.config.TLS == nil {
		return socket, nil, nil
	}
	conn := tls.Server(socket, t.config.TLS)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	certs := conn.ConnectionState().PeerCertificates
	if len(certs) == 0 {
		return nil, nil, errors.New("the receiver presented no certificate")
	}
	return conn, certs[0], nil
}
