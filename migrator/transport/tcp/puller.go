package tcp

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
	"github.com/cascadeinfer/cascade/policies"
)

// Open connects and presents a ticket. See transport.Transport.
func (t *Transport) Open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (transport.Puller, error) {
	return lease.Open(t.Name(), offer, func() (*lease.Puller, error) { return t.open(ctx, receiver, offer) })
}

func (t *Transport) open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (_ *lease.Puller, err error) {
	if t.config.TLS == nil {
		if err := lease.CheckPlaintext(offer.Address); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r := &blockReader{}
	defer func() {
		if err != nil {
			r.release()
		}
	}()
	if r.local, err = transport.HoldMemory(t.config.Pool); err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: lease.HelloTimeout, Control: setCongestionControl}
	dialer.SetMultipathTCP(false)
	if r.socket, err = dialer.DialContext(ctx, "tcp", offer.Address); err != nil {
		return nil, lease.Cause(ctx, err)
	}
	conn, err := t.presentTicket(ctx, r, receiver, offer)
	if err != nil {
		return nil, err
	}
	if err := r.remote.CheckCompatible(r.local.Layout); err != nil {
		return nil, err
	}
	return newPuller(r, conn), nil
}

// presentTicket sends the hello over a new connection, which it secures if TLS is
// configured, and receives the layout of the source's pool.
func (t *Transport) presentTicket(ctx context.Context, r *blockReader, receiver policies.ReplicaID, offer transport.Offer) (conn net.Conn, err error) {
	hello, err := lease.Hello{Ticket: offer.Ticket, Receiver: receiver}.Append(nil)
	if err != nil {
		return nil, err
	}
	conn = r.socket
	err = lease.InterruptConn(ctx, r.socket, func() error {
		if err := r.socket.SetDeadline(time.Now().Add(lease.HelloTimeout)); err != nil {
			return err
		}
		if t.config.TLS != nil {
			secure := tls.Client(r.socket, t.config.ClientTLS(offer.Source, offer.Address))
			if err := secure.HandshakeContext(ctx); err != nil {
				return err
			}
			conn = secure
		}
		if _, err := conn.Write(hello); err != nil {
			return err
		}
		r.remote, _, err = lease.ReadWelcome(conn)
		return err
	})
	return conn, err
}
