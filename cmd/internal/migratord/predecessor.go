package migratord

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	xds "github.com/cascadeinfer/cascade/xds/api"
)

// Link connects to the other process of the replica. See handover.Link.
//
// During an upgrade a replica consists of two processes. The later one leads: it accepts requests,
// reports, buys and sells. The earlier one ends when its streams have ended; until then they run on
// the same engine, count as the replica's load, and may migrate. Peers' answers about these streams
// reach the later process, which forwards them; the earlier one handles them itself.
type Link interface {
	// Send sends a message of at most 64 KiB, or drops it. It returns quickly.
	Send([]byte) error
	// Receive waits for the next message, which is valid until the next call. After an error it
	// returns no more messages.
	Receive() ([]byte, error)
	Close() error
}

// The kinds of messages. A kind is the first byte of its messages. Versions only add kinds and
// fields, and ignore unknown ones.
const (
	stateMessage         byte = 's' // to the later process: JSON of a predecessorState
	controlUpdateMessage byte = 'o' // to the earlier one: JSON of a controlUpdate
	envelopeMessage      byte = 'e' // to the earlier one: an api.Envelope for it
)

// predecessorState is what a preceding process contributes to its replica's state.
type predecessorState struct {
	Load              policies.Load    `json:"load"`
	Flow              policies.Flow    `json:"flow"`
	Snapshot          []policies.Batch `json:"snapshot"`
	Residents, Pinned uint32
	PinnedSeconds     float64
	Streams           uint32
	Migrations        [][]byte `json:"migrations,omitempty"` // each an encoded xds/api.Migration
}

// controlUpdate is the part of the control plane's reply that a preceding process needs.
type controlUpdate struct {
	Drain     bool
	StageMean policies.Tokens
	MeanKnown bool
}

// maxMessage is the largest message, in bytes.
const maxMessage = 64 << 10

// encodeMessage encodes a message of a kind. It returns an error if the message is too long or
// cannot be encoded.
func encodeMessage(kind byte, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	switch {
	case err != nil:
		return nil, fmt.Errorf("internal error: encode a message of kind %c: %w", kind, err)
	case len(b) >= maxMessage:
		return nil, fmt.Errorf("message of kind %c: %d bytes exceed the limit", kind, len(b))
	}
	return append([]byte{kind}, b...), nil
}

// encodeState encodes the message of a state. It leaves out the last migrations, as many as do not fit.
func encodeState(s predecessorState) ([]byte, error) {
	for {
		b, err := encodeMessage(stateMessage, s)
		if err == nil || len(s.Migrations) == 0 {
			return b, err
		}
		s.Migrations = s.Migrations[:len(s.Migrations)/2]
	}
}

// errInvalidState is the error of a state that would corrupt a report.
var errInvalidState = errors.New("invalid state of the preceding process")

// decodeState decodes a state, and rejects values that would corrupt a report.
func decodeState(b []byte) (s predecessorState, err error) {
	if err := json.Unmarshal(b, &s); err != nil {
		return predecessorState{}, err
	}
	if err := s.Load.Validate(); err != nil {
		return predecessorState{}, err
	}
	if err := s.Flow.Validate(); err != nil {
		return predecessorState{}, err
	}
	if s.PinnedSeconds < 0 {
		return predecessorState{}, errInvalidState
	}
	return s, nil
}

// addToStatus returns st, the status of the later process, with s added.
func (s predecessorState) addToStatus(st frontend.Status) frontend.Status {
	a, b := st.Load, s.Load
	st.Load.Running, st.Load.Waiting = a.Running+b.Running, a.Waiting+b.Waiting
	st.Load.Held, st.Load.Promised, st.Load.Cached = a.Held+b.Held, a.Promised+b.Promised, a.Cached+b.Cached
	switch {
	case a.Iteration == 0:
		st.Load.Iteration = b.Iteration
	case b.Iteration == 0 || a.Running+b.Running == 0:
		st.Load.Iteration = a.Iteration
	default: // both processes use one engine: weight by their requests
		st.Load.Iteration = (a.Iteration*float64(a.Running) + b.Iteration*float64(b.Running)) / float64(a.Running+b.Running)
	}
	if sum, ok := st.Flow.Plus(s.Flow); ok {
		st.Flow = sum
	}
	if len(st.Snapshot) == len(s.Snapshot) {
		all := make([]policies.Batch, len(st.Snapshot))
		for i, b := range st.Snapshot {
			all[i] = b.Plus(s.Snapshot[i])
		}
		st.Snapshot = all
	}
	return st
}

// addToReport adds s to the report of the later process, whose load has it already.
func (s predecessorState) addToReport(r *xds.LoadReport) {
	r.Residents += s.Residents
	r.Pinned += s.Pinned
	r.PinnedSeconds = max(r.PinnedSeconds, s.PinnedSeconds)
	r.Streams += s.Streams
	for _, b := range s.Migrations {
		m := new(xds.Migration)
		if proto.Unmarshal(b, m) == nil {
			r.Migrations = append(r.Migrations, m)
		}
	}
}

// predecessor is the preceding process while it runs. Its methods are safe for concurrent use.
type predecessor struct {
	mu       sync.Mutex
	expected bool        // it runs, and is not connected yet
	messages chan []byte // messages to the process; nil unless connected
	state    predecessorState
}

// maxQueued is how many messages may wait for the preceding process. Further messages are dropped,
// as any message to a peer may be.
const maxQueued = 256

// connect records that the process is connected, and returns the messages to
// send to it.
func (e *predecessor) connect() <-chan []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.messages = make(chan []byte, maxQueued)
	return e.messages
}

// disconnect records that the process has ended.
func (e *predecessor) disconnect() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.expected, e.messages, e.state = false, nil, predecessorState{}
}

// setState records the state that the process sent.
func (e *predecessor) setState(s predecessorState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.messages != nil {
		e.state = s
	}
}

// currentState returns what the process contributes to the replica's state, or the zero state once
// the process has ended.
func (e *predecessor) currentState() predecessorState {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state
}

// send queues a message to the process.
func (e *predecessor) send(b []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case e.messages <- b:
	default:
	}
}

// forward forwards an envelope to the process. It returns false if there is no preceding process:
// then no process of the replica knows the subject of the envelope.
func (e *predecessor) forward(env *api.Envelope) bool {
	e.mu.Lock()
	alive, connected := e.expected || e.messages != nil, e.messages != nil
	e.mu.Unlock()
	if connected {
		if b, err := (proto.MarshalOptions{}).MarshalAppend([]byte{envelopeMessage}, env); err == nil && len(b) <= maxMessage {
			e.send(b)
		}
	}
	return alive
}
