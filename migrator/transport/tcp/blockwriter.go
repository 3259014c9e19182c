package tcp

import (
	"bufio"
	"errors"
	"net"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport/lease"
)

// blockWriter sends the blocks that the receiver of one lease asks for.
type blockWriter struct {
	conn   net.Conn
	lease  *lease.Lease
	packed []byte // blocks of a device
}

// serveAsks answers asks until the connection ends.
func (w *blockWriter) serveAsks() error {
	out := bufio.NewWriterSize(w, writeBytes)
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
		if err := w.lease.CheckAnnounced(blocks); err != nil {
			return err
		}
		if err := w.writeAnswer(out, appendHead(buf[:0], kindAnswer, len(blocks)), blocks); err != nil {
			return err
		}
	}
}

// writeAnswer writes the answer to an ask, inside the lease.
func (w *blockWriter) writeAnswer(out *bufio.Writer, head []byte, blocks []uint32) error {
	if !w.lease.Enter() {
		return errors.New("the grant is over")
	}
	defer w.lease.Leave()
	if _, err := out.Write(head); err != nil {
		return err
	}
	write := w.writeHostBlocks
	if w.lease.Memory.Device != nil {
		write = w.writeDeviceBlocks
	}
	if err := write(out, blocks); err != nil {
		return err
	}
	return out.Flush()
}

// writeHostBlocks writes blocks of mapped memory.
func (w *blockWriter) writeHostBlocks(out *bufio.Writer, blocks []uint32) error {
	for _, b := range blocks {
		for r := range w.lease.Memory.Regions {
			if _, err := out.Write(w.lease.Memory.RegionBytes(b, r)); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeDeviceBlocks writes blocks of a device, which it first gathers in host memory.
func (w *blockWriter) writeDeviceBlocks(out *bufio.Writer, blocks []uint32) error {
	m := w.lease.Memory
	size := m.BlockBytes()
	batch := int(max(1, packBytes/size))
	if need := min(batch, len(blocks)) * int(size); len(w.packed) < need {
		w.packed = make([]byte, need)
	}
	for at := 0; at < len(blocks); at += batch {
		part := blocks[at:min(at+batch, len(blocks))]
		packed := w.packed[:len(part)*int(size)]
		if err := m.Device.Gather(packed, m.Layout, part); err != nil {
			return err
		}
		if _, err := out.Write(packed); err != nil {
			return err
		}
	}
	return nil
}

// Write writes to the connection, in pieces, each of which may take stallTimeout. The end of the lease closes the
// connection, so that no receiver keeps Revoke waiting.
func (w *blockWriter) Write(b []byte) (n int, err error) {
	for len(b) > n {
		deadline := time.Now().Add(stallTimeout)
		if w.lease.Deadline.Before(deadline) {
			deadline = w.lease.Deadline
		}
		if err := w.conn.SetWriteDeadline(deadline); err != nil {
			return n, err
		}
		written, err := w.conn.Write(b[n:min(len(b), n+pieceBytes)])
		if n += written; err != nil {
			return n, err
		}
	}
	return n, nil
}
