package migratord

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/loadreport"
	"github.com/cascadeinfer/cascade/policies"
	xds "github.com/cascadeinfer/cascade/xds/api"
)

// During an upgrade a replica is two processes. The later one speaks for it: it
// takes requests, reports, buys and sells. The earlier one ends when its streams
// have, and until then they run at the same engine, count as its load, and may
// move: what peers answer about them reaches the later process, which passes it
// on, and the earlier one acts for itself.

// Link leads to the other process. See handover.Link.
type Link interface {
	// Send sends a word of at most 64 KiB, or drops it, within a moment.
	Send([]byte) error
	// Receive waits for the next word, which holds until the next call; an error
	// is final.
	Receive() ([]byte, error)
	Close() error
}

// The kinds of words, which are their first bytes. Kinds and fields are only
// ever added; what is not known is ignored.
const (
	stateMessage         byte = 's' // to the later process: JSON of a state
	controlUpdateMessage byte = 'o' // to the earlier one: JSON of an order
	envelopeMessage      byte = 'e' // to the earlier one: an api.Envelope that is meant for it
)

// predecessorState is what an earlier process adds to its replica.
type predecessorState struct {
	Load              policies.Load    `json:"load"`
	Flow              policies.Flow    `json:"flow"`
	Snapshot          []policies.Batch `json:"snapshot"`
	Residents, Pinned int
	PinnedSeconds     float64
	Streams           int
	Migrations        [][]byte `json:"moves,omitempty"` // each an xds/api.Move
}

// controlUpdate is what the control plane says that concerns an earlier process.
type controlUpdate struct {
	Drain     bool
	StageMean policies.Tokens
	MeanKnown bool
}

// maxMessage is how many bytes a word may have.
const maxMessage = 64 << 10

// encodeMessage makes a word of a kind. The error says that it is too long, or no JSON.
func encodeMessage(kind byte, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	switch {
	case err != nil:
		return nil, fmt.Errorf("internal error: a word of kind %c: %w", kind, err)
	case len(b) >= maxMessage:
		return nil, fmt.Errorf("a word of kind %c of %d bytes", kind, len(b))
	}
	return append([]byte{kind}, b...), nil
}

// encodeState makes a word of a state, without its moves where they are too many.
func encodeState(s predecessorState) ([]byte, error) {
	b, err := encodeMessage(stateMessage, s)
	if err != nil {
		s.Migrations = nil
		b, err = encodeMessage(stateMessage, s)
	}
	return b, err
}

// errInvalidState says that a word makes no sense.
var errInvalidState = errors.New("a word that makes no sense")

// decodeState reads a state and checks what would spoil a report.
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
	if s.Residents < 0 || s.Pinned < 0 || s.Streams < 0 || !(s.PinnedSeconds >= 0) {
		return predecessorState{}, errInvalidState
	}
	return s, nil
}

// addToStatus adds an earlier process's state to a later one's.
func (s predecessorState) addToStatus(st frontend.Status) frontend.Status {
	a, b := st.Load, s.Load
	st.Load = policies.Load{Running: a.Running + b.Running, Waiting: a.Waiting + b.Waiting, Held: a.Held + b.Held, Promised: a.Promised + b.Promised}
	switch {
	case a.Iteration == 0:
		st.Load.Iteration = b.Iteration
	case b.Iteration == 0 || a.Running+b.Running == 0:
		st.Load.Iteration = a.Iteration
	default: // of one engine, as the requests of both see it
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

// addToExtra adds it to what reports say beyond that.
func (s predecessorState) addToExtra(x loadreport.Extra) loadreport.Extra {
	x.Residents += s.Residents
	x.Pinned += s.Pinned
	x.PinnedSeconds = max(x.PinnedSeconds, s.PinnedSeconds)
	x.Streams += s.Streams
	for _, b := range s.Migrations {
		m := new(xds.Migration)
		if proto.Unmarshal(b, m) == nil {
			x.Migrations = append(x.Migrations, m)
		}
	}
	return x
}

// predecessor is the process before this one, as long as it lives. Its methods are safe
// for concurrent use.
type predecessor struct {
	mu       sync.Mutex
	expected bool        // it lives, and has not been reached yet
	messages chan []byte // for it; nil while it has not been reached, and afterwards
	state    predecessorState
}

// maxQueued is how many words may wait for the earlier process; more are lost, as
// any message to a peer may be.
const maxQueued = 256

// connect takes note that it has been reached and returns what is to be sent to it.
func (e *predecessor) connect() <-chan []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.messages = make(chan []byte, maxQueued)
	return e.messages
}

// disconnect takes note that it has ended.
func (e *predecessor) disconnect() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.expected, e.messages, e.state = false, nil, predecessorState{}
}

// setState takes what it says of itself.
func (e *predecessor) setState(s predecessorState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.messages != nil {
		e.state = s
	}
}

// currentState is what it adds to the replica; nothing once it has ended.
func (e *predecessor) currentState() predecessorState {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state
}

// send has a word sent to it.
func (e *predecessor) send(b []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case e.messages <- b:
	default:
	}
}

// forward passes an envelope on. It returns false when no earlier process lives:
// then the replica knows nothing of what the envelope is about.
func (e *predecessor) forward(env *api.Envelope) bool {
	e.mu.Lock()
	lives, reached := e.expected || e.messages != nil, e.messages != nil
	e.mu.Unlock()
	if reached {
		if b, err := (proto.MarshalOptions{}).MarshalAppend([]byte{envelopeMessage}, env); err == nil && len(b) <= maxMessage {
			e.send(b)
		}
	}
	return lives
}
