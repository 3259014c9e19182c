package tcp

import (
	"context"
	"hash/crc32"
	"net"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
)

// reader takes an answer's bytes to their places: large regions straight from
// the kernel, small ones through a buffer. It looks at each piece once more, for
// its sum, while the piece is in the core's cache.
type reader struct {
	conn  net.Conn
	armed time.Time
	// What has been read ahead is buf[at:end]; nil where nothing is.
	buf     []byte
	at, end int
}

// newReader reads ahead where a region is too small to be worth a call to the
// kernel. TLS reads ahead by itself.
func newReader(conn net.Conn, l transport.Layout) reader {
	r := reader{conn: conn}
	if _, plain := conn.(*net.TCPConn); !plain {
		return r
	}
	for _, region := range l.Regions {
		if region.Bytes < directBytes {
			r.buf = make([]byte, readBytes)
			break
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

// read fills dst and returns its sum.
func (r *reader) read(ctx context.Context, dst []byte) (uint32, error) {
	sum := uint32(0)
	for len(dst) > 0 {
		if r.at < r.end {
			n := min(len(dst), r.end-r.at)
			sum = transport.Copy(dst[:n], r.buf[r.at:r.at+n], sum)
			r.at, dst = r.at+n, dst[n:]
			continue
		}
		if err := r.arm(ctx); err != nil {
			return 0, err
		}
		if r.buf != nil {
			n, err := r.conn.Read(r.buf)
			if n == 0 && err != nil {
				return 0, err
			}
			r.at, r.end = 0, n
			continue
		}
		n, err := r.conn.Read(dst[:min(len(dst), readBytes)])
		sum = crc32.Update(sum, crc32.IEEETable, dst[:n])
		if dst = dst[n:]; err != nil && len(dst) > 0 {
			return 0, err
		}
	}
	return sum, nil
}
