package verbs

import (
	"fmt"
	"unsafe"
)

// Batch is the largest number of entries that one call posts.
const Batch = 128

// Signaled requests complete when they succeed; others complete only when they fail.
const Signaled = 2

// Joined makes an entry part of the request before it: only its local memory counts,
// which follows the local memory of that request. Limits.ReadSegments bounds their
// number.
const Joined = 1 << 31

// Work is one READ: Length bytes of the peer's memory into local memory, given by
// addresses and keys. Its layout is that of cv_work.
type Work struct {
	ID            uint64
	Local, Remote uint64
	Length        uint32
	LocalKey      uint32
	RemoteKey     uint32
	Flags         uint32
}

// Path is the path from a queue pair to its peer. Its layout is that of cv_path.
type Path struct {
	GID               [16]byte
	Pair              uint32 // the number of the peer's pair
	PeerPSN, LocalPSN uint32 // the first packet numbers, of 24 bits
	LID               uint16
	Global            uint8 // 1 if the path has a GID
	GIDIndex          uint8 // of the local GID
	Port              uint8
	MTU               uint8
	Reads             uint8 // of this end in flight, at most
	PeerReads         uint8 // of the peer in flight, at most
	// A packet is sent again after 4.096 µs · 2^Timeout, Retries times, at most 6: some
	// devices take 7 as infinite.
	Timeout, Retries uint8
	Hops             uint8
	TrafficClass     uint8
	ServiceLevel     uint8
}

// QueuePair is one end of a reliable connection. It is for one goroutine at a time,
// except for MoveToError.
type QueuePair struct {
	Number uint32

	device *Device
	pair   uint64
	handle closeOnce
}

// NewQueuePair makes a queue pair whose completions go to a queue, with room for so many
// requests at a time, each with at most so many pieces of local memory.
func (d *Device) NewQueuePair(q *CompletionQueue, requests, pieces int) (*QueuePair, error) {
	v := words{d.domain, q.queue, uint64(requests), uint64(pieces)}
	if err := d.lib.do(createQP, &v, nil); err != nil {
		return nil, fmt.Errorf("verbs: create queue pair: %w", err)
	}
	d.lib.pairs.Add(1)
	return &QueuePair{Number: uint32(v[1]), device: d, pair: v[0]}, nil
}

// The states of a queue pair.
const (
	stateInit  = 1
	stateRTR   = 2
	stateRTS   = 3
	stateError = 6
)

// Init assigns a port to the pair, and sets what its peer may access.
func (p *QueuePair) Init(port uint8, access Access) error {
	return p.modify("init", &words{p.pair, stateInit, uint64(port), uint64(access)}, nil)
}

// ReadyToReceive makes the pair answer its peer.
func (p *QueuePair) ReadyToReceive(path *Path) error {
	return p.modify("ready to receive", &words{p.pair, stateRTR}, unsafe.Pointer(path))
}

// ReadyToSend makes the pair, which answers already, post requests.
func (p *QueuePair) ReadyToSend(path *Path) error {
	return p.modify("ready to send", &words{p.pair, stateRTS}, unsafe.Pointer(path))
}

// MoveToError ends the connection: what is in flight fails, and nothing new begins, at
// either end. Any goroutine may call it before Close.
func (p *QueuePair) MoveToError() error {
	return p.modify("error", &words{p.pair, stateError}, nil)
}

func (p *QueuePair) modify(state string, v *words, path unsafe.Pointer) error {
	if err := p.device.lib.do(modifyQP, v, path); err != nil {
		return fmt.Errorf("verbs: pair %d to %s: %w", p.Number, state, err)
	}
	return nil
}

// Post posts requests, at most Batch entries, and returns how many were accepted.
func (p *QueuePair) Post(work []Work) (int, error) {
	v := words{p.pair, uint64(len(work))}
	if err := p.device.lib.do(postSend, &v, unsafe.Pointer(unsafe.SliceData(work))); err != nil {
		n := 0
		if v[0] < uint64(len(work)) {
			n = int(v[0])
		}
		return n, fmt.Errorf("verbs: pair %d: %w", p.Number, err)
	}
	return int(v[0]), nil
}

// Close destroys the pair: when it has returned, neither end reaches memory through it
// any more. Further calls return the result of the first one.
func (p *QueuePair) Close() error {
	return p.handle.close(func() error {
		err := p.device.lib.do(destroyQP, &words{p.pair}, nil)
		if err == nil {
			p.device.lib.pairs.Add(-1)
		}
		return err
	})
}
