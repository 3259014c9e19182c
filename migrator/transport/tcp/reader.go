package tcp

import (
	"context"
	"io"
	"net"
	"time"
)

// reader takes an answer's bytes from a connection to their places.
type reader struct {
	conn    net.Conn
	scatter func(parts [][]byte) (int, error)
	armed   time.Time
}

func newReader(conn net.Conn) reader {
	r := reader{conn: conn}
	if tcp, ok := conn.(*net.TCPConn); ok {
		r.scatter = scatter(tcp)
	}
	if r.scatter == nil { // TLS reads ahead by itself
		r.scatter = func(parts [][]byte) (int, error) {
			n, err := conn.Read(parts[0][:min(len(parts[0]), readBytes)])
			if n > 0 {
				err = nil // it comes again
			}
			return n, err
		}
	}
	return r
}

// arm moves the connection's deadline on from time to time, and reports the end
// of the context. That comes second, since the new deadline may have undone the
// one that the context's end has set.
func (r *reader) arm(ctx context.Context) error {
	if now := time.Now(); now.Sub(r.armed) > stallTimeout/8 {
		r.armed = now
		if err := r.conn.SetDeadline(now.Add(stallTimeout)); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// full reads as many bytes as dst has.
func (r *reader) full(ctx context.Context, dst []byte) error {
	if err := r.arm(ctx); err != nil {
		return err
	}
	_, err := io.ReadFull(r.conn, dst)
	return err
}

// some reads into parts, none of which is empty, in their order: one byte at
// least, and not more than stay in the core's cache.
func (r *reader) some(ctx context.Context, parts [][]byte) (int, error) {
	if err := r.arm(ctx); err != nil {
		return 0, err
	}
	return r.scatter(parts)
}
