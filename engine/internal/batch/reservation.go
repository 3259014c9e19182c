package batch

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
)

// Why a reservation cannot be made, filled or adopted.
var (
	ErrFull     = errors.New("not enough free KV blocks")
	ErrAdopted  = errors.New("a request has adopted the reservation")
	ErrFilling  = errors.New("the reservation is being filled")
	ErrReleased = errors.New("the reservation is released")
	ErrUnfilled = errors.New("no token of the reservation is known: it was never filled")
)

// Reservation is blocks that are set aside for a sequence that runs elsewhere,
// and what is known of it so far. The zero value has no blocks. It belongs to
// the scheduler, except for what a Fill has taken.
type Reservation struct {
	status   status
	sequence *Sequence // that adopted it
	blocks   []kv.Block
	filled   filled
}

// status is where a reservation is in its life.
type status int

const (
	open status = iota
	filling
	doomed // released while it was being filled
	released
	adopted
)

// filled is the part of a sequence that a reservation knows.
type filled struct {
	ids      []model.Token
	chain    []kv.Hash
	computed int
	digest   model.Digest
}

// Blocks are the reservation's, in the order of the positions they are for. The
// slice must not be changed.
func (r *Reservation) Blocks() []kv.Block { return r.blocks }

// Length is how many ids are known.
func (r *Reservation) Length() int { return len(r.filled.ids) }

// Over reports whether nothing is left of the reservation: it was released, or
// the sequence that adopted it has ended.
func (r *Reservation) Over() bool {
	return r.status == released || r.status == adopted && r.sequence.state == ended
}

// Reserve sets blocks aside, at least one, so that r has enough for tokens. It
// takes none from sequences: ErrFull leaves r as it was.
func (s *Scheduler) Reserve(r *Reservation, tokens int) error {
	if err := r.busy(); err != nil && !errors.Is(err, ErrFilling) {
		return err
	}
	need := max(1, s.blocksFor(tokens)) - len(r.blocks)
	if need > s.blocks.Free() {
		return ErrFull
	}
	r.blocks = slices.Grow(r.blocks, max(need, 0)+1) // and one to grow into
	for range need {
		b, _ := s.blocks.Take()
		s.Pool.Forget(b)
		r.blocks = append(r.blocks, b)
		s.reserved++
	}
	return nil
}

// busy says why a reservation is not open.
func (r *Reservation) busy() error {
	switch r.status {
	case filling:
		return ErrFilling
	case released, doomed:
		return ErrReleased
	case adopted:
		return ErrAdopted
	}
	return nil
}

// Release frees a reservation, at the end of a Fill if one is under way. One
// that is adopted is left alone.
func (s *Scheduler) Release(r *Reservation) {
	switch r.status {
	case filling:
		r.status = doomed
	case open:
		r.status = released
		s.reserved -= len(r.blocks)
		s.blocks.Release(r.blocks)
		r.blocks, r.filled = nil, filled{}
	}
}

// Fill is one addition to a reservation, from BeginFill to EndFill.
type Fill struct {
	r        *Reservation
	pool     *kv.Pool
	blocks   []kv.Block
	ids      []model.Token
	computed int
	filled   filled
	err      error // of Read
}

// BeginFill begins to add ids, from position from on, whose KV bytes are in
// place up to position computed. Until EndFill the reservation cannot be
// adopted, and its blocks are not given to others.
func (s *Scheduler) BeginFill(r *Reservation, from int, ids []model.Token, computed int) (*Fill, error) {
	if err := r.busy(); err != nil {
		return nil, err
	}
	f := &r.filled
	switch room := len(r.blocks) * s.Pool.BlockTokens; {
	case from != len(f.ids):
		return nil, fmt.Errorf("ids from position %d on: the reservation has %d, go on there", from, len(f.ids))
	case computed < f.computed:
		return nil, fmt.Errorf("computed is %d, and was %d before", computed, f.computed)
	case computed > from+len(ids) || computed > room:
		return nil, fmt.Errorf("computed is %d, of %d ids and %d positions in blocks", computed, from+len(ids), room)
	}
	r.status = filling
	return &Fill{r: r, pool: s.Pool, blocks: r.blocks, ids: ids, computed: computed, filled: r.filled}, nil
}

// Read takes the ids over and reads the KV bytes of the new positions. Its time
// grows with their number; it is the one step that may run beside the scheduler. Its
// error is the Pool's, and nothing is added then.
func (f *Fill) Read() error {
	to, size := &f.filled, f.pool.BlockTokens
	// Room for all that the blocks hold is made at once: neither a later Fill nor
	// the adopted sequence's first tokens have to copy what is here by then.
	if n := len(to.ids) + len(f.ids); n >= cap(to.ids) {
		n = max(n, len(f.blocks)*size) + reserve
		to.ids = append(make([]model.Token, 0, n), to.ids...)
		to.chain = append(make([]kv.Hash, 0, n/size), to.chain...)
	}
	to.ids = append(to.ids, f.ids...)
	to.chain = extend(to.chain, to.ids, size)
	if to.computed < f.computed {
		if f.err = f.pool.Load(f.blocks[to.computed/size : (f.computed+size-1)/size]); f.err != nil {
			return f.err
		}
	}
	for p := to.computed; p < f.computed; p++ {
		to.digest += model.Read(f.pool.Slot(f.blocks[p/size], p%size), p)
	}
	to.computed = f.computed
	return nil
}

// EndFill makes what was read a part of the reservation. It must follow every
// BeginFill.
func (s *Scheduler) EndFill(f *Fill) {
	gone := f.r.status == doomed
	f.r.status = open
	if f.err == nil {
		f.r.filled = f.filled
	}
	if gone {
		s.Release(f.r)
	}
}

// Adopt makes a sequence of a reservation: its ids are the prompt, its blocks
// the sequence's own, and what they hold decides how the text goes on. At least
// the last position is computed anew. Its cost does not depend on the length.
func (s *Scheduler) Adopt(r *Reservation, q Request) (*Sequence, error) {
	if err := r.busy(); err != nil {
		return nil, err
	}
	f := &r.filled
	if len(f.ids) == 0 {
		return nil, ErrUnfilled
	}
	if last := len(f.ids) - 1; f.computed > last {
		b := r.blocks[last/s.Pool.BlockTokens]
		f.digest -= model.Read(s.Pool.Slot(b, last%s.Pool.BlockTokens), last)
		f.computed = last
	}
	q.Prompt = f.ids
	x := &Sequence{
		Request: q, ids: f.ids, chain: f.chain, blocks: r.blocks,
		computed: f.computed, digest: f.digest + model.Digest(q.Adapter), cached: f.computed,
		admitted: true, adopted: true, blockSize: s.Pool.BlockTokens,
		settled: extent{len(f.ids), f.computed},
	}
	s.reserved -= len(r.blocks)
	*r = Reservation{status: adopted, sequence: x}
	s.queueFirst(x)
	return x, nil
}
