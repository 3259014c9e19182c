package tcp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/pull"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// serveReceiver serves one receiver until its connection or its lease ends. It closes the
// socket itself then, without the closing messages of TLS, which could block.
func (t *Transport) serveReceiver(ctx context.Context, socket net.Conn, admit func() error) error {
	if err := socket.SetDeadline(time.Now().Add(pull.HelloTimeout)); err != nil {
		return err
	}
	conn, cert, err := t.acceptTLS(ctx, socket)
	if err != nil {
		return err
	}
	hello, err := transport.ReadHello(conn)
	if err != nil {
		return err
	}
	if err := t.receivers.Check(cert, hello.Receiver); err != nil {
		conn.Write(transport.AppendRefusal(nil))
		return err
	}
	lease, err := t.source.Redeem(hello.Ticket, hello.Receiver, time.Now())
	if err != nil {
		conn.Write(transport.AppendRefusal(nil))
		return fmt.Errorf("receiver %s: %w", hello.Receiver, err)
	}
	defer lease.End()
	if err := admit(); err != nil {
		conn.Write(transport.AppendRefusal(nil))
		return fmt.Errorf("receiver %s: %w", hello.Receiver, err)
	}
	defer lease.CloseWhenDone(socket)()

	welcome, err := transport.AppendWelcome(nil, lease.Memory.Layout, lease.Memory.Size())
	if err != nil {
		return err
	}
	if _, err := conn.Write(welcome); err != nil {
		return err
	}
	w := &blockWriter{conn: conn, lease: lease}
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
