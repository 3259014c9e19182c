package servertest

import "net"

// bufferedConn is a client's end of a net.Pipe that buffers what it receives, as a socket
// does: the server's writes do not wait for the client to read.
type bufferedConn struct {
	net.Conn
	chunks chan []byte // closed at the end of the stream
	err    error       // of that end, written before
	rest   []byte      // of the last chunk
}

// buffer returns a connection that receives until it is closed.
func buffer(conn net.Conn) *bufferedConn {
	c := &bufferedConn{Conn: conn, chunks: make(chan []byte, 1024)}
	go func() {
		defer close(c.chunks)
		for {
			chunk := make([]byte, 4<<10)
			n, err := conn.Read(chunk)
			c.chunks <- chunk[:n]
			if c.err = err; err != nil {
				return
			}
		}
	}()
	return c
}

// Read implements net.Conn.
func (c *bufferedConn) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		chunk, open := <-c.chunks
		if !open {
			return 0, c.err
		}
		c.rest = chunk
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}
