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
	ErrUnfilled = errors.New("the reservation has no tokens: it was never filled")
)

// Reservation holds blocks for a sequence that runs elsewhere, and what is known of it so far. The
// zero value has no blocks. It is owned by the scheduler, except for the data of a Fill.
type Reservation struct {
	status   status
	sequence *Sequence // that adopted it
	blocks   []kv.Block
	filled   filled
	prefix   *prefix // of PinPrefix, else nil
}

// status is the state of a reservation.
type status int

const (
	open status = iota
	filling
	doomed // released during a fill
	released
	adopted
)

// filled is the known part of a sequence.
type filled struct {
	ids      []model.Token
	chain    []kv.Hash
	computed int
	digest   model.Digest
}

// Blocks returns the blocks in the order of positions. The slice must not be changed.
func (r *Reservation) Blocks() []kv.Block { return r.blocks }

// Length returns the number of known ids.
func (r *Reservation) Length() int { return len(r.filled.ids) }

// Ended reports whether the reservation was released or the sequence that adopted it has ended.
func (r *Reservation) Ended() bool {
	return r.status == released || r.status == adopted && r.sequence.state == ended
}

// Reserve extends r to blocks for so many tokens, at least one. It preempts no sequence: with
// ErrFull, r is unchanged.
func (s *Scheduler) Reserve(r *Reservation, tokens int) error {
	if err := r.checkOpen(); err != nil && !errors.Is(err, ErrFilling) {
		return err
	}
	need := max(1, s.blocksFor(tokens)) - len(r.blocks)
	if need > s.blocks.Free() {
		return ErrFull
	}
	r.blocks = slices.Grow(r.blocks, max(need, 0)+1) // with room for one more
	for range need {
		b, _ := s.take()
		r.blocks = append(r.blocks, b)
		s.reserved++
	}
	return nil
}

// checkOpen returns why a reservation is not one for a request, and open.
func (r *Reservation) checkOpen() error {
	if r.prefix != nil && r.status == open {
		return ErrPrefix
	}
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

// Release frees a reservation, after the current Fill if there is one. An adopted one is unchanged.
func (s *Scheduler) Release(r *Reservation) {
	switch r.status {
	case filling:
		r.status = doomed
	case open:
		r.status = released
		s.reserved -= len(r.blocks)
		s.blocks.Release(r.blocks)
		r.blocks, r.filled, r.prefix = nil, filled{}, nil
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

// BeginFill starts to add ids, from position from on, whose KV bytes are in place up to position
// computed. Until EndFill the reservation cannot be adopted, and its blocks are not freed.
func (s *Scheduler) BeginFill(r *Reservation, from int, ids []model.Token, computed int) (*Fill, error) {
	if err := r.checkOpen(); err != nil {
		return nil, err
	}
	f := &r.filled
	switch room := len(r.blocks) * s.Pool.BlockTokens; {
	case from != len(f.ids):
		return nil, fmt.Errorf("ids start at position %d, but the reservation has %d ids", from, len(f.ids))
	case computed < f.computed:
		return nil, fmt.Errorf("computed is %d, less than %d before", computed, f.computed)
	case computed > from+len(ids) || computed > room:
		return nil, fmt.Errorf("computed is %d, more than %d ids or %d positions in blocks", computed, from+len(ids), room)
	}
	r.status = filling
	return &Fill{r: r, pool: s.Pool, blocks: r.blocks, ids: ids, computed: computed, filled: r.filled}, nil
}

// Read copies the ids and reads the KV bytes of the new positions. Its time grows with their
// number; it is the only step that may run concurrently with the scheduler. Its error is the
// Pool's, and nothing is added then.
func (f *Fill) Read() error {
	to, size := &f.filled, f.pool.BlockTokens
	// Allocate for all that the blocks hold at once: neither a later Fill nor the adopted
	// sequence's first tokens have to copy the ids.
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

// EndFill adds what was read to the reservation. It must follow every BeginFill.
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

// Adopt makes a sequence of a reservation: its ids are the prompt, its blocks become the
// sequence's, and their content determines how the text continues. At least the last position
// is computed again. The cost does not depend on the length.
func (s *Scheduler) Adopt(r *Reservation, q Request) (*Sequence, error) {
	if err := r.checkOpen(); err != nil {
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
		Request: q, ids: f.ids, length: len(f.ids), prompt: len(f.ids), chain: f.chain, blocks: r.blocks,
		computed: f.computed, digest: f.digest + model.Digest(q.Adapter), cached: f.computed, external: f.computed,
		admitted: true, adopted: true, blockSize: s.Pool.BlockTokens,
		settled: extent{len(f.ids), f.computed},
	}
	s.reserved -= len(r.blocks)
	*r = Reservation{status: adopted, sequence: x}
	s.queueFirst(x)
	return x, nil
}

// AdoptLength is Adopt for a scheduler without a Model: the reservation becomes the blocks of a
// sequence that goes on where from stopped, which is of another scheduler or of this one. All its
// positions but the last are taken as computed. The reservation must have blocks for its length.
func (s *Scheduler) AdoptLength(r *Reservation, q Request, from *Sequence) (*Sequence, error) {
	if err := r.checkOpen(); err != nil {
		return nil, err
	}
	if s.blocksFor(from.length-1) > len(r.blocks) {
		return nil, ErrUnfilled
	}
	chain := from.chain
	if own := slices.IndexFunc(chain, func(h kv.Hash) bool { return h >= ownHash }); own >= 0 {
		chain = chain[:own]
	}
	x := NewLength(q, from.length, chain)
	x.blocks, x.computed, x.cached, x.external = r.blocks, from.length-1, from.length-1, from.length-1
	x.admitted, x.adopted, x.settled.computed = true, true, from.length-1
	s.reserved -= len(r.blocks)
	*r = Reservation{status: adopted, sequence: x}
	s.queueFirst(x)
	return x, nil
}
