package tcp

import (
	"errors"
	"net"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport/lease"
)

// blockWriter sends the blocks that the receiver of one lease asks for.
type blockWriter struct {
	conn    net.Conn
	lease   *lease.Lease
	head    [headSize]byte
	queue   [writeParts][]byte // parts to be written
	n       int                // of them
	queued  int                // bytes in the queue
	buffers net.Buffers
	record  []byte // see writeRecords
	packed  []byte // blocks of a device
}

// serveAsks answers asks until the connection ends.
func (w *blockWriter) serveAsks() error {
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
		if err := w.enqueue(appendHead(w.head[:0], kindAnswer, len(blocks))); err != nil {
			return err
		}
		if w.lease.Memory.Device != nil {
			err = w.writeDeviceBlocks(blocks)
		} else {
			err = w.enqueueHostBlocks(blocks)
		}
		if err != nil {
			return err
		}
		if err := w.flush(); err != nil {
			return err
		}
	}
}

// enqueueHostBlocks enqueues blocks of mapped memory.
func (w *blockWriter) enqueueHostBlocks(blocks []uint32) error {
	for _, b := range blocks {
		for r := range w.lease.Memory.Regions {
			if err := w.enqueue(w.lease.Memory.RegionBytes(b, r)); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeDeviceBlocks writes blocks of a device, which it first gathers in host memory.
func (w *blockWriter) writeDeviceBlocks(blocks []uint32) error {
	size := w.lease.Memory.BlockBytes()
	batch := int(max(1, packBytes/size))
	if need := min(batch, len(blocks)) * int(size); len(w.packed) < need {
		w.packed = make([]byte, need)
	}
	for at := 0; at < len(blocks); at += batch {
		part := blocks[at:min(at+batch, len(blocks))]
		packed := w.packed[:len(part)*int(size)]
		if err := w.gatherDeviceBlocks(packed, part); err != nil {
			return err
		}
		if err := errors.Join(w.enqueue(packed), w.flush()); err != nil { // packed is reused
			return err
		}
	}
	return nil
}

// gatherDeviceBlocks copies blocks of a device to dst, inside the lease.
func (w *blockWriter) gatherDeviceBlocks(dst []byte, blocks []uint32) error {
	if !w.lease.Enter() {
		return errGrantOver
	}
	defer w.lease.Leave()
	return w.lease.Memory.Device.Gather(dst, w.lease.Memory.Layout, blocks)
}

var errGrantOver = errors.New("the grant is over")

// enqueue adds bytes to the queue, and writes the queue when it is full.
func (w *blockWriter) enqueue(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), writeBytes-w.queued)
		w.queue[w.n] = b[:n]
		w.n, w.queued, b = w.n+1, w.queued+n, b[n:]
		if w.n == writeParts || w.queued == writeBytes {
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// flush writes the queue, inside the lease.
func (w *blockWriter) flush() error {
	if w.n == 0 {
		return nil
	}
	now := time.Now()
	if !w.lease.Enter() {
		return errGrantOver
	}
	defer w.lease.Leave()
	deadline := now.Add(stallTimeout)
	if w.lease.Deadline.Before(deadline) {
		deadline = w.lease.Deadline
	}
	if err := w.conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	w.buffers = w.queue[:w.n]
	w.n, w.queued = 0, 0
	if _, plain := w.conn.(*net.TCPConn); plain {
		_, err := w.buffers.WriteTo(w.conn)
		return err
	}
	return w.writeRecords()
}

// writeRecords writes the buffers through one large buffer, since TLS would make a record
// of every part, however small.
func (w *blockWriter) writeRecords() error {
	if w.record == nil {
		w.record = make([]byte, 0, recordBytes)
	}
	w.record = w.record[:0]
	for _, part := range w.buffers {
		for len(part) > 0 {
			n := min(len(part), recordBytes-len(w.record))
			w.record, part = append(w.record, part[:n]...), part[n:]
			if len(w.record) < recordBytes {
				continue
			}
			if _, err := w.conn.Write(w.record); err != nil {
				return err
			}
			w.record = w.record[:0]
		}
	}
	_, err := w.conn.Write(w.record)
	return err
}
