package verbs

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// Completion is a work request that has ended. Its layout is the library's.
type Completion struct {
	ID     uint64
	Status uint32
	opcode uint32
	Vendor uint32 // the device's code of an error
	Bytes  uint32
	_      uint32
	Pair   uint32
	_, _   uint32
	_, _   uint16
	_, _   uint8
}

// The statuses that callers distinguish.
const (
	Success       = 0
	Flushed       = 5  // the pair was in the error state
	RemoteAccess  = 10 // the peer's memory may not be accessed
	RetryExceeded = 12 // the peer does not answer
)

// CompletionError is a work request that has failed. Its queue pair cannot be used any
// more.
type CompletionError struct {
	Status, Vendor uint32
	Text           string // the library's name of the status
}

func (e *CompletionError) Error() string {
	return fmt.Sprintf("work request failed: %s (status %d, vendor code %d)", e.Text, e.Status, e.Vendor)
}

// CompletionQueue receives the completions of queue pairs. It is for one goroutine at a
// time, except for SetDeadline.
type CompletionQueue struct {
	device  *Device
	queue   uint64
	channel uint64
	file    *os.File // becomes readable when an armed queue has a completion
	raw     syscall.RawConn
	ready   func(uintptr) bool // reads an event of the channel
	failed  error              // of ready
	handle  closeOnce
}

// NewCompletionQueue makes a queue of at least so many entries.
func (d *Device) NewCompletionQueue(entries int) (_ *CompletionQueue, err error) {
	q := &CompletionQueue{device: d}
	d.lib.queues.Add(1)
	defer func() {
		if err != nil {
			err = fmt.Errorf("verbs: create completion queue: %w", errors.Join(err, q.Close()))
		}
	}()
	v := words{d.context}
	if err := d.lib.do(createChannel, &v, nil); err != nil {
		return nil, err
	}
	q.channel = v[0]
	if q.file, err = newPollableFile(int(v[1]), "completions of "+d.Name); err != nil {
		return nil, err
	}
	if q.raw, err = q.file.SyscallConn(); err != nil {
		return nil, err
	}
	q.ready = func(uintptr) bool {
		q.failed = q.device.lib.do(getCQEvent, &words{q.channel}, nil)
		return !errors.Is(q.failed, syscall.EAGAIN)
	}
	v = words{d.context, uint64(entries), q.channel}
	if err := d.lib.do(createCQ, &v, nil); err != nil {
		return nil, err
	}
	q.queue = v[0]
	return q, nil
}

// Poll takes the present completions, without waiting, and returns how many entries of
// dst it filled.
func (q *CompletionQueue) Poll(dst []Completion) (int, error) {
	v := words{q.queue, uint64(len(dst))}
	if err := q.device.lib.do(pollCQ, &v, unsafe.Pointer(unsafe.SliceData(dst))); err != nil {
		return 0, fmt.Errorf("verbs: %w", err)
	}
	return int(v[0]), nil
}

// Wait is Poll that waits for at least one completion, or for the deadline: the error
// wraps os.ErrDeadlineExceeded then.
func (q *CompletionQueue) Wait(dst []Completion) (int, error) {
	if n, err := q.Poll(dst); n > 0 || err != nil {
		return n, err
	}
	for {
		if err := q.device.lib.do(requestNotify, &words{q.queue}, nil); err != nil {
			return 0, fmt.Errorf("verbs: %w", err)
		}
		// Completions from before the queue was armed make no event.
		if n, err := q.Poll(dst); n > 0 || err != nil {
			return n, err
		}
		if err := q.waitForEvent(); err != nil {
			return 0, fmt.Errorf("verbs: %w", err)
		}
		if n, err := q.Poll(dst); n > 0 || err != nil {
			return n, err
		}
	}
}

// waitForEvent waits for the channel.
func (q *CompletionQueue) waitForEvent() error {
	if err := q.raw.Read(q.ready); err != nil {
		return err
	}
	if q.failed != nil {
		return q.failed
	}
	return q.device.lib.do(ackCQEvents, &words{q.queue, 1}, nil)
}

// SetDeadline ends a Wait at a time; the zero time means never. Any goroutine may call it
// at any time.
func (q *CompletionQueue) SetDeadline(t time.Time) { q.file.SetReadDeadline(t) }

// CompletionErr returns the error of a completion, nil if it succeeded.
func (q *CompletionQueue) CompletionErr(c Completion) error {
	if c.Status == Success {
		return nil
	}
	return &CompletionError{Status: c.Status, Vendor: c.Vendor, Text: q.device.lib.statusText(c.Status)}
}

// Close destroys the queue; its pairs must have been closed. Further calls return the
// result of the first one.
func (q *CompletionQueue) Close() error {
	return q.handle.close(func() error {
		var err error
		if q.queue != 0 {
			err = q.device.lib.do(destroyCQ, &words{q.queue}, nil)
		}
		if q.file != nil {
			err = errors.Join(err, q.file.Close())
		}
		if q.channel != 0 {
			err = errors.Join(err, q.device.lib.do(destroyChannel, &words{q.channel}, nil))
		}
		q.device.lib.queues.Add(-1)
		return err
	})
}
