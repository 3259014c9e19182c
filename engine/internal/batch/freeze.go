package batch

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
)

// Why a sequence has no table.
var (
	ErrEnded   = errors.New("the request has ended")
	ErrWaiting = errors.New("the request waits to be computed")
)

// Table lists the KV blocks of a sequence.
type Table struct {
	Generation uint64 // grows whenever blocks were freed
	Computed   int    // positions [0, Computed) have their KV in blocks
	Length     int    // prompt and generated tokens
	Cached     int    // prompt tokens that were found in the prefix cache
	Prompt     int    // length of the prompt
	// IDs are those of positions [from, Length). They never change.
	IDs []model.Token
	// Blocks hold positions [First·BlockTokens, Computed).
	First  int
	Blocks []kv.Block
}

// Table lists the ids and blocks of a sequence from position from on, as of the latest Settle. It
// returns ErrWaiting if the sequence has generated no token or has lost its blocks.
func (s *Scheduler) Table(q *Sequence, from int) (Table, error) {
	if err := q.checkTable(); err != nil {
		return Table{}, err
	}
	if from < 0 || from > q.settled.length {
		return Table{}, fmt.Errorf("position %d of a request of %d tokens", from, q.settled.length)
	}
	t := Table{
		Generation: q.generation, Computed: q.settled.computed, Length: q.settled.length,
		Cached: q.cached, Prompt: q.prompt,
		IDs: q.ids[from:q.settled.length:q.settled.length], First: from / s.Pool.BlockTokens,
	}
	if last := s.blocksFor(t.Computed); t.First < last {
		t.Blocks = slices.Clone(q.blocks[t.First:last])
		if err := s.Pool.Flush(q.blocks[last-1:]); err != nil { // full ones are flushed already
			return Table{}, err
		}
	}
	return t, nil
}

// checkTable returns why there is no table of a sequence.
func (q *Sequence) checkTable() error {
	switch {
	case q.state == ended:
		return ErrEnded
	case q.state != running && q.state != frozen || q.settled.length <= q.prompt:
		return ErrWaiting
	}
	return nil
}

// Freeze stops a sequence that has a table, between two Steps: it keeps its blocks and its place
// in the batch, and generates nothing. owner can thaw it together with all its others. A
// frozen sequence keeps its first owner.
func (s *Scheduler) Freeze(q *Sequence, owner uint64) error {
	if err := q.checkTable(); err != nil || q.state == frozen {
		return err
	}
	s.running = slices.DeleteFunc(s.running, func(x *Sequence) bool { return x == q })
	s.frozen = append(s.frozen, q)
	q.state, q.owner = frozen, owner
	if f, ok := q.Receiver.(Flusher); ok {
		f.Flush()
	}
	return nil
}

// Thaw lets a frozen sequence continue; it has no effect on others.
func (s *Scheduler) Thaw(q *Sequence) {
	if q.state != frozen {
		return
	}
	s.frozen = slices.DeleteFunc(s.frozen, func(x *Sequence) bool { return x == q })
	at, _ := slices.BinarySearchFunc(s.running, q.order, func(x *Sequence, order uint64) int { return cmp.Compare(x.order, order) })
	s.running = slices.Insert(s.running, at, q)
	q.state = running
}

// ThawAll thaws all sequences that an owner froze.
func (s *Scheduler) ThawAll(owner uint64) {
	for _, q := range slices.Clone(s.frozen) {
		if q.owner == owner {
			s.Thaw(q)
		}
	}
}

// Drop ends a sequence that continues elsewhere. Its receiver is notified and must not pass on
// anything after that. A sequence that has ended stays as it is.
func (s *Scheduler) Drop(q *Sequence) error {
	if q.state == ended {
		return ErrEnded
	}
	s.Abort(q)
	if q.Receiver != nil {
		q.Receiver.Receive(Event{Sequence: q, Finish: Dropped, Cached: q.cached})
	}
	return nil
}
