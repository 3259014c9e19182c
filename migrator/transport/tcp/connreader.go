package tcp

import (
	"context"
	"io"
	"net"
	"time"
)

// connReader reads the bytes of answers from a connection to their places.
type connReader struct {
	conn  net.Conn
	readv func(parts [][]byte) (int, error)
	armed time.Time // when the deadline was set
}

func newConnReader(conn net.Conn) connReader {
	r := connReader{conn: conn}
	if tcp, ok := conn.(*net.TCPConn); ok {
		r.readv = newReadv(tcp)
	}
	if r.readv == nil { // TLS, which reads ahead by itself
		r.readv = func(parts [][]byte) (int, error) {
			n, err := conn.Read(parts[0][:min(len(parts[0]), readBytes)])
			if n > 0 {
				err = nil // the next read returns it
			}
			return n, err
		}
	}
	return r
}

// extendDeadline moves the connection's deadline on from time to time, and returns the
// error of ctx. It checks ctx last, since the new deadline may have replaced the one that
// the end of ctx has set.
func (r *connReader) extendDeadline(ctx context.Context) error {
	if now := time.Now(); now.Sub(r.armed) > stallTimeout/8 {
		r.armed = now
		if err := r.conn.SetDeadline(now.Add(stallTimeout)); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// readFull fills dst.
func (r *connReader) readFull(ctx context.Context, dst []byte) error {
	if err := r.extendDeadline(ctx); err != nil {
		return err
	}
	_, err := io.ReadFull(r.conn, dst)
	return err
}

// readParts reads into parts, in their order, at least one byte and at most readBytes. No
// part may be empty.
func (r *connReader) readParts(ctx context.Context, parts [][]byte) (int, error) {
	if err := r.extendDeadline(ctx); err != nil {
		return 0, err
	}
	return r.readv(parts)
}
