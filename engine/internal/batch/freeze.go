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

// Table tells where a sequence's KV is.
type Table struct {
	Generation uint64 // grows whenever blocks were taken away
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

// Table tells about a sequence that has generated a token, as of the latest
// Settle; ids and blocks before position from are left out. ErrWaiting says that
// it has generated none, or has lost its blocks.
func (s *Scheduler) Table(q *Sequence, from int) (Table, error) {
	if err := q.tellable(); err != nil {
		return Table{}, err
	}
	if from < 0 || from > q.settled.length {
		return Table{}, fmt.Errorf("position %d of a request of %d tokens", from, q.settled.length)
	}
	t := Table{
		Generation: q.generation, Computed: q.settled.computed, Length: q.settled.length,
		Cached: q.cached, Prompt: len(q.Prompt),
		IDs: q.ids[from:q.settled.length:q.settled.length], First: from / s.Pool.BlockTokens,
	}
	if last := s.blocksFor(t.Computed); t.First < last {
		t.Blocks = slices.Clone(q.blocks[t.First:last])
		if err := s.Pool.Flush(q.blocks[last-1:]); err != nil { // the full ones are there
			return Table{}, err
		}
	}
	return t, nil
}

// tellable says why there is no table of a sequence.
func (q *Sequence) tellable() error {
	switch {
	case q.state == ended:
		return ErrEnded
	case q.state != running && q.state != frozen || q.settled.length <= len(q.Prompt):
		return ErrWaiting
	}
	return nil
}

// Freeze stops a sequence of which Table tells, between two Steps: it keeps its
// blocks and its place in the batch, and generates nothing. owner can thaw it
// with all its others. A frozen one stays as it is, its first owner's.
func (s *Scheduler) Freeze(q *Sequence, owner uint64) error {
	if err := q.tellable(); err != nil || q.state == frozen {
		return err
	}
	s.running = slices.DeleteFunc(s.running, func(x *Sequence) bool { return x == q })
	s.frozen = append(s.frozen, q)
	q.state, q.owner = frozen, owner
	return nil
}

// Thaw lets a frozen sequence go on; any other does already.
func (s *Scheduler) Thaw(q *Sequence) {
	if q.state != frozen {
		return
	}
	s.frozen = slices.DeleteFunc(s.frozen, func(x *Sequence) bool { return x == q })
	at, _ := slices.BinarySearchFunc(s.running, q.order, func(x *Sequence, order uint64) int { return cmp.Compare(x.order, order) })
	s.running = slices.Insert(s.running, at, q)
	q.state = running
}

// ThawAll thaws what an owner froze.
func (s *Scheduler) ThawAll(owner uint64) {
	for _, q := range slices.Clone(s.frozen) {
		if q.owner == owner {
			s.Thaw(q)
		}
	}
}

// Drop ends a sequence that runs on elsewhere. Its receiver is told, and gets
// nothing more that it should pass on. One that has ended is left alone.
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
