package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/ticket"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/wire"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/identity"
)

// server is the source's listener.
type server struct {
	config   Config
	book     *ticket.Book
	listener net.Listener
	notes    notes
}

// acceptPause is how long a source that is out of descriptors waits.
const acceptPause = 100 * time.Millisecond

// serve takes receivers until ctx ends, and returns after the last session.
func (s *server) serve(ctx context.Context) {
	var sessions sync.WaitGroup
	defer sessions.Wait()
	defer context.AfterFunc(ctx, func() { s.listener.Close() })()
	defer s.listener.Close()
	slots := make(chan struct{}, maxSessions)
	for {
		conn, err := s.listener.Accept()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return
		}
		if err != nil {
			s.config.Logger.Warn("tcp transport: no new connections for a moment", "err", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			s.config.Logger.Warn("tcp transport: a receiver is turned away, too many are at work", "bound", maxSessions)
			conn.Close()
			continue
		}
		sessions.Go(func() {
			defer func() { <-slots }()
			defer conn.Close()
			if err := s.session(ctx, conn); err != nil {
				s.config.Logger.Debug("tcp transport: session", "peer", conn.RemoteAddr(), "err", err)
			}
		})
	}
}

// session serves one receiver until its connection or its lease ends. socket is
// closed under it then, without the good manners of TLS: they could wait.
func (s *server) session(ctx context.Context, socket net.Conn) error {
	defer context.AfterFunc(ctx, func() { socket.Close() })()
	if err := socket.SetDeadline(time.Now().Add(helloTimeout)); err != nil {
		return err
	}
	conn, err := s.secure(ctx, socket)
	if err != nil {
		return err
	}
	hello, err := wire.ReadHello(conn)
	if err != nil {
		return err
	}
	if err := s.bound(conn, hello.Receiver); err != nil {
		conn.Write(wire.AppendRefusal(nil))
		return err
	}
	lease, err := s.book.Redeem(hello.Ticket, hello.Receiver, time.Now())
	if err != nil {
		conn.Write(wire.AppendRefusal(nil))
		return fmt.Errorf("receiver %s: %w", hello.Receiver, err)
	}
	defer lease.End()

	defer lease.Cut(socket)()

	welcome, err := wire.AppendWelcome(nil, lease.Memory.Layout, lease.Memory.Size())
	if err != nil {
		return err
	}
	if _, err := conn.Write(welcome); err != nil {
		return err
	}
	w := &writer{conn: conn, lease: lease}
	return transport.Guard(func() error { return w.serve() })
}

// secure wraps a socket in TLS, if there is any, and demands a certificate.
func (s *server) secure(ctx context.Context, socket net.Conn) (net.Conn, error) {
	if s.config.TLS == nil {
		return socket, nil
	}
	conn := tls.Server(socket, s.config.TLS)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	if len(conn.ConnectionState().PeerCertificates) == 0 {
		return nil, errors.New("the receiver shows no certificate")
	}
	return conn, nil
}

// bound says why who presents a ticket cannot be its receiver: the certificate is
// another's. It comes before the ticket is looked at, which stays good for the
// one whom it is for.
func (s *server) bound(conn net.Conn, receiver policies.ReplicaID) error {
	if s.config.TrustDomain == "" {
		return nil
	}
	err := errors.New("a receiver without a name")
	if secure, ok := conn.(*tls.Conn); ok && receiver != "" {
		want := identity.Want{TrustDomain: s.config.TrustDomain, Role: identity.Migrator, Name: string(receiver)}
		_, err = want.Certificate(secure.ConnectionState().PeerCertificates[0])
	}
	if err != nil && s.notes.due(time.Now()) {
		s.config.Logger.Warn("tcp transport: a receiver is refused", "peer", conn.RemoteAddr(), "err", err)
	}
	return err
}

// notes keeps lies from filling the log.
type notes struct {
	mu   sync.Mutex
	last time.Time
}

func (n *notes) due(now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now.Sub(n.last) < noteEvery {
		return false
	}
	n.last = now
	return true
}

// writer answers the asks of one lease.
type writer struct {
	conn  net.Conn
	lease *ticket.Lease
	head  [headSize]byte
	parts [writeParts][]byte
	n     int // of parts
	bytes int // in parts
	batch net.Buffers
	buf   []byte // of gather
	pack  []byte // blocks of a device
}

func (w *writer) serve() error {
	blocks := make([]uint32, 0, maxAsk)
	buf := make([]byte, 4*maxAsk)
	for {
		if err := w.conn.SetDeadline(w.lease.Deadline); err != nil {
			return err
		}
		var err error
		if blocks, err = readAsk(w.conn, blocks[:0], buf, w.lease.Memory.Blocks); err != nil {
			return err
		}
		if err := w.add(appendHead(w.head[:0], kindAnswer, len(blocks))); err != nil {
			return err
		}
		if w.lease.Memory.Device != nil {
			err = w.device(blocks)
		} else {
			err = w.host(blocks)
		}
		if err != nil {
			return err
		}
		if err := w.flush(); err != nil {
			return err
		}
	}
}

// host puts blocks of mapped memory in line.
func (w *writer) host(blocks []uint32) error {
	for _, b := range blocks {
		for r := range w.lease.Memory.Regions {
			if err := w.add(w.lease.Memory.Part(b, r)); err != nil {
				return err
			}
		}
	}
	return nil
}

// device writes blocks of a device, by way of memory of this process.
func (w *writer) device(blocks []uint32) error {
	size := w.lease.Memory.BlockBytes()
	most := int(max(1, packBytes/size))
	if need := min(most, len(blocks)) * int(size); len(w.pack) < need {
		w.pack = make([]byte, need)
	}
	for at := 0; at < len(blocks); at += most {
		part := blocks[at:min(at+most, len(blocks))]
		pack := w.pack[:len(part)*int(size)]
		if err := w.fetch(pack, part); err != nil {
			return err
		}
		if err := errors.Join(w.add(pack), w.flush()); err != nil { // pack is used again
			return err
		}
	}
	return nil
}

// fetch packs blocks of a device, inside the lease.
func (w *writer) fetch(dst []byte, blocks []uint32) error {
	if !w.lease.Enter(time.Now()) {
		return errOver
	}
	defer w.lease.Leave()
	return w.lease.Memory.Device.Gather(dst, w.lease.Memory.Layout, blocks)
}

var errOver = errors.New("the grant is over")

// add puts bytes in line, and writes when a batch is full.
func (w *writer) add(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), writeBytes-w.bytes)
		w.parts[w.n] = b[:n]
		w.n, w.bytes, b = w.n+1, w.bytes+n, b[n:]
		if w.n == writeParts || w.bytes == writeBytes {
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// flush writes what is in line, inside the lease.
func (w *writer) flush() error {
	if w.n == 0 {
		return nil
	}
	now := time.Now()
	if !w.lease.Enter(now) {
		return errOver
	}
	defer w.lease.Leave()
	limit := now.Add(stallTimeout)
	if w.lease.Deadline.Before(limit) {
		limit = w.lease.Deadline
	}
	if err := w.conn.SetWriteDeadline(limit); err != nil {
		return err
	}
	w.batch = w.parts[:w.n]
	w.n, w.bytes = 0, 0
	if _, plain := w.conn.(*net.TCPConn); plain {
		_, err := w.batch.WriteTo(w.conn)
		return err
	}
	return w.gather()
}

// gather writes the batch through a buffer: TLS would make a record of each
// part, however small.
func (w *writer) gather() error {
	if w.buf == nil {
		w.buf = make([]byte, 0, gatherBytes)
	}
	w.buf = w.buf[:0]
	for _, part := range w.batch {
		for len(part) > 0 {
			n := min(len(part), gatherBytes-len(w.buf))
			w.buf, part = append(w.buf, part[:n]...), part[n:]
			if len(w.buf) < gatherBytes {
				continue
			}
			if _, err := w.conn.Write(w.buf); err != nil {
				return err
			}
			w.buf = w.buf[:0]
		}
	}
	_, err := w.conn.Write(w.buf)
	return err
}
