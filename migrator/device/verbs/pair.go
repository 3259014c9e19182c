package verbs

import (
	"fmt"
	"unsafe"
)

// Batch is how many entries one call posts at most.
const Batch = 128

// Signaled requests that succeed complete; those without complete when they fail
// only.
const Signaled = 2

// Joined makes an entry part of the request before: its local memory follows on that
// one's, and only that counts. Their number is bounded by the pair's pieces.
const Joined = 1 << 31

// Work is one request: Length bytes between local and remote memory, named by
// their addresses and keys. Its layout is that of cv_work.
type Work struct {
	ID            uint64
	Local, Remote uint64
	Length        uint32
	LocalKey      uint32
	RemoteKey     uint32
	Flags         uint32
}

// Opcode is what a request does.
type Opcode uint32

// The opcodes that are used here, as verbs numbers them.
const (
	Write Opcode = 0
	Send  Opcode = 2
	Read  Opcode = 4
)

// Path is where a pair leads, and how. Its layout is that of cv_path.
type Path struct {
	GID               [16]byte
	Pair              uint32 // the peer's number
	PeerPSN, LocalPSN uint32 // the packets' first numbers, of 24 bits
	LID               uint16
	Global            uint8 // 1: there is a GID
	GIDIndex          uint8 // the own one
	Port              uint8
	MTU               uint8
	Reads             uint8 // own ones under way, at most
	PeerReads         uint8 // and of the peer
	// Timeout is 4.096 µs · 2^Timeout until a packet is sent again; Retries is how
	// often, of at most 6: some devices take 7 for always.
	Timeout, Retries uint8
	Hops             uint8
	TrafficClass     uint8
	ServiceLevel     uint8
}

// QueuePair is one end of a reliable connection. It is for one goroutine at a time,
// except for Fail.
type QueuePair struct {
	Number uint32

	device *Device
	pair   uint64
	handle closeOnce
}

// NewQueuePair makes a pair whose completions go to a queue, with room for so many requests
// and receives at a time. A request has so many pieces of local memory at most, a
// receive one.
func (d *Device) NewQueuePair(q *CompletionQueue, requests, receives, pieces int) (*QueuePair, error) {
	v := words{d.domain, q.queue, uint64(requests), uint64(receives), uint64(pieces)}
	if err := d.lib.do(createQP, &v, nil); err != nil {
		return nil, fmt.Errorf("verbs: a pair: %w", err)
	}
	d.lib.pairs.Add(1)
	return &QueuePair{Number: uint32(v[1]), device: d, pair: v[0]}, nil
}

// states of a pair.
const (
	stateInit  = 1
	stateRTR   = 2
	stateRTS   = 3
	stateError = 6
)

// Init gives the pair a port, and says what its peer may do.
func (p *QueuePair) Init(port uint8, access Access) error {
	return p.modify("init", &words{p.pair, stateInit, uint64(port), uint64(access)}, nil)
}

// ReadyToReceive makes the pair serve its peer.
func (p *QueuePair) ReadyToReceive(path *Path) error {
	return p.modify("ready to receive", &words{p.pair, stateRTR}, unsafe.Pointer(path))
}

// ReadyToSend makes the pair post requests; it answers already.
func (p *QueuePair) ReadyToSend(path *Path) error {
	return p.modify("ready to send", &words{p.pair, stateRTS}, unsafe.Pointer(path))
}

// MoveToError ends the connection: what is under way fails, and nothing new begins, at
// either end. It may be called at any time before Close, by anybody.
func (p *QueuePair) MoveToError() error {
	return p.modify("error", &words{p.pair, stateError}, nil)
}

func (p *QueuePair) modify(state string, v *words, path unsafe.Pointer) error {
	if err := p.device.lib.do(modifyQP, v, path); err != nil {
		return fmt.Errorf("verbs: pair %d to %s: %w", p.Number, state, err)
	}
	return nil
}

// Post posts requests of one kind, of at most Batch entries, and returns how many
// requests were taken.
func (p *QueuePair) Post(op Opcode, work []Work) (int, error) {
	return p.post(postSend, op, work)
}

// PostReceive posts buffers for what the peer sends, at most Batch, and returns how
// many were taken.
func (p *QueuePair) PostReceive(work []Work) (int, error) { return p.post(postRecv, 0, work) }

func (p *QueuePair) post(c call, op Opcode, work []Work) (int, error) {
	v := words{p.pair, uint64(op), uint64(len(work))}
	if err := p.device.lib.do(c, &v, unsafe.Pointer(unsafe.SliceData(work))); err != nil {
		n := 0
		if v[0] < uint64(len(work)) {
			n = int(v[0])
		}
		return n, fmt.Errorf("verbs: pair %d: %w", p.Number, err)
	}
	return int(v[0]), nil
}

// Close ends the pair: when it has returned, neither end reaches memory by it any
// more. More calls return what the first did.
func (p *QueuePair) Close() error {
	return p.handle.close(func() error {
		err := p.device.lib.do(destroyQP, &words{p.pair}, nil)
		if err == nil {
			p.device.lib.pairs.Add(-1)
		}
		return err
	})
}
