package move_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/migrator/kvport"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// Parameters of the test engines. A token's KV is two numbers, one in each region, computed only
// from its id and its position.
const (
	blockTokens = 4
	tokenBytes  = 1000
	poolBlocks  = 512
	kvBytes     = 8
	step        = 10 * time.Millisecond
)

var layout = transport.Layout{Blocks: poolBlocks, Regions: []transport.Region{
	{Offset: 0, Stride: blockTokens * kvBytes, Bytes: blockTokens * kvBytes},
	{Offset: poolBlocks * blockTokens * kvBytes, Stride: blockTokens * kvBytes, Bytes: blockTokens * kvBytes},
}}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func kv(id uint32, pos, region int) uint64 {
	return mix(uint64(id)<<32 + uint64(pos)<<1 + uint64(region) + 1)
}

// digest is computed from all the KV of a request, in order; its final value determines the next
// token.
type digest uint64

func (d digest) add(v uint64) digest { return digest(mix(uint64(d)*31 + v)) }

func (d digest) next() uint32 { return uint32(mix(uint64(d))>>33) % 50_000 }

// engine is a paged pool of real bytes and a loop that reads all bytes of a request for each token.
type engine struct {
	mu         sync.Mutex
	away       bool
	blind      bool   // it serves no blocks
	connector  string // the name of its KV connector, "" for none
	busy       bool   // it has a queue
	memory     *transport.Memory
	free       []uint32
	limbo      []uint32        // freed at this instant: must not be read later
	seqs       map[string]*seq // by leg
	held       map[string]*reservation
	onToken    func(*seq) // under mu
	mistakes   []string
	context    int                                          // maximum length of a request, 0 for no limit
	stubborn   bool                                         // it never thaws, drops or releases
	prefillEnd time.Time                                    // of the step in progress
	wake       chan struct{}                                // holds a token when there may be work
	gate       func(ctx context.Context, call string) error // called before every call of the migrator
}

// seq is a request in an engine.
type seq struct {
	leg        string
	conn       *legConn
	ids        []uint32
	prompt     int
	computed   int
	blocks     []uint32
	generation uint64
	frozen     bool
	max        int
	live       bool // adopted
	since      time.Time
}

type reservation struct {
	blocks   []uint32
	ids      []uint32
	computed int
	seq      *seq // the request that has adopted it
}

var errRefused = errors.New("the engine refuses")

func newEngine() *engine {
	e := &engine{memory: &transport.Memory{Layout: layout, Bytes: make([]byte, 2*poolBlocks*blockTokens*kvBytes)}, seqs: map[string]*seq{}, held: map[string]*reservation{}, wake: make(chan struct{}, 1)}
	for b := range uint32(poolBlocks) {
		e.free = append(e.free, b)
	}
	return e
}

func (e *engine) Description() (kvport.Description, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return kvport.Description{BlockTokens: blockTokens, TokenBytes: tokenBytes, Fingerprint: 77}, !e.away && !e.blind
}

func (e *engine) Memory() (*transport.Memory, bool) { return e.memory, true }

// allocate returns n free blocks, or none.
func (e *engine) allocate(n int) []uint32 {
	if n > len(e.free) {
		return nil
	}
	out := slices.Clone(e.free[len(e.free)-n:])
	e.free = e.free[:len(e.free)-n]
	return out
}

// freeBlocks frees blocks: from the next step on their bytes are different.
func (e *engine) freeBlocks(list []uint32) {
	e.limbo = append(e.limbo, list...)
	e.work()
}

func (e *engine) work() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// overwriteFreed overwrites freed blocks, so that a late reader fails its checks.
func (e *engine) overwriteFreed() {
	for _, b := range e.limbo {
		for r := range layout.Regions {
			part := e.memory.RegionBytes(b, r)
			for i := range part {
				part[i] ^= 0x5a
			}
		}
	}
	e.free, e.limbo = append(e.free, e.limbo...), nil
}

func (e *engine) slot(q *seq, pos, region int) []byte {
	return e.memory.RegionBytes(q.blocks[pos/blockTokens], region)[pos%blockTokens*kvBytes:][:kvBytes]
}

// run generates until ctx ends.
func (e *engine) run(ctx context.Context) {
	begun := time.Now()
	for {
		// Each engine has its own fixed times for steps.
		select {
		case <-ctx.Done():
			return
		case <-time.After(step - time.Since(begun)%step):
		}
		e.mu.Lock()
		idle, dirty := len(e.seqs) == 0, len(e.limbo) > 0
		e.mu.Unlock()
		if idle && !dirty {
			select {
			case <-ctx.Done():
				return
			case <-e.wake:
			}
			continue
		}
		if dirty {
			// All reads of these blocks at an earlier instant are complete; Wait makes that visible
			// to the race detector.
			synctest.Wait()
		}
		e.mu.Lock()
		e.overwriteFreed()
		for _, leg := range slices.Sorted(maps.Keys(e.seqs)) {
			if q := e.seqs[leg]; !q.frozen {
				e.generate(q)
			}
		}
		e.mu.Unlock()
	}
}

// generate computes the missing KV and samples one token.
func (e *engine) generate(q *seq) {
	for ; q.computed < len(q.ids); q.computed++ {
		if q.computed/blockTokens >= len(q.blocks) {
			more := e.allocate(1)
			if more == nil {
				return
			}
			q.blocks = append(q.blocks, more...)
		}
		for r := range layout.Regions {
			binary.LittleEndian.PutUint64(e.slot(q, q.computed, r), kv(q.ids[q.computed], q.computed, r))
		}
	}
	d := digest(0)
	for pos := range q.computed {
		for r := range layout.Regions {
			d = d.add(binary.LittleEndian.Uint64(e.slot(q, pos, r)))
		}
	}
	q.ids = append(q.ids, d.next())
	if e.onToken != nil {
		e.onToken(q)
	}
	q.conn.push(event{id: d.next(), token: true})
	if len(q.ids) >= q.max {
		q.conn.push(event{finish: true})
		e.remove(q)
	}
}

func (e *engine) remove(q *seq) {
	if e.seqs[q.leg] != q {
		return
	}
	delete(e.seqs, q.leg)
	for id, r := range e.held {
		if r.seq == q {
			delete(e.held, id)
		}
	}
	e.freeBlocks(q.blocks)
	q.blocks = nil
}

// prompt starts a request from its ids.
func (e *engine) prompt(c *legConn, leg string, ids []uint32, prompt, most int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.away || e.seqs[leg] != nil {
		return errRefused
	}
	e.seqs[leg] = &seq{leg: leg, conn: c, ids: slices.Clone(ids), prompt: prompt, max: most, since: time.Now()}
	e.work()
	return nil
}

// adopt starts a request from a filled reservation.
func (e *engine) adopt(c *legConn, leg, id string, most int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.held[id]
	if e.away || e.seqs[leg] != nil || r == nil || r.seq != nil {
		return errRefused
	}
	q := &seq{leg: leg, conn: c, ids: r.ids, prompt: len(r.ids), computed: r.computed, blocks: r.blocks, max: most, live: true, since: time.Now()}
	if len(r.ids) == 0 || r.computed != len(r.ids)-1 {
		e.mistakes = append(e.mistakes, fmt.Sprintf("%s is adopted with %d of %d tokens computed", id, r.computed, len(r.ids)))
		return errRefused
	}
	for pos := range q.computed {
		for g := range layout.Regions {
			if binary.LittleEndian.Uint64(e.slot(q, pos, g)) != kv(q.ids[pos], pos, g) {
				e.mistakes = append(e.mistakes, fmt.Sprintf("%s is adopted with a wrong block at position %d", id, pos))
			}
		}
	}
	r.seq, e.seqs[leg] = q, q
	e.work()
	return nil
}

// abort handles the disconnection of a client.
func (e *engine) abort(c *legConn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, q := range e.seqs {
		if q.conn == c {
			e.remove(q)
			return
		}
	}
}

// preempt frees a request's blocks; the engine recomputes them in other blocks.
func (e *engine) preempt() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, q := range e.seqs {
		if !q.frozen && len(q.blocks) > 0 {
			fresh := e.allocate(len(q.blocks))
			if fresh == nil {
				continue
			}
			e.freeBlocks(q.blocks)
			q.blocks, q.generation, q.computed = fresh, q.generation+1, 0
		}
	}
}

// AbandonSession ends the session.
func (e *engine) AbandonSession(error) { e.endSession() }

// enter waits at the gate, and then locks the engine.
func (e *engine) enter(ctx context.Context, call string) error {
	if err := e.gate(ctx, call); err != nil {
		return err
	}
	e.mu.Lock()
	return nil
}

// endSession is the engine's reaction to the end of its migrator.
func (e *engine) endSession() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, q := range e.seqs {
		q.frozen = false
	}
	for id, r := range e.held {
		if r.seq == nil {
			e.freeBlocks(r.blocks)
			delete(e.held, id)
		}
	}
}

func (e *engine) find(leg string) (*seq, error) {
	q := e.seqs[leg]
	switch {
	case e.away:
		return nil, kvport.ErrUnavailable
	case q == nil:
		return nil, kvport.ErrNotFound
	case len(q.ids) <= q.prompt && !q.live || q.computed < len(q.ids)-1:
		return nil, kvport.ErrNotComputed
	}
	return q, nil
}

func (e *engine) table(q *seq, from int) kvport.Table {
	t := kvport.Table{Generation: q.generation, Computed: q.computed, Length: len(q.ids), BlockTokens: blockTokens}
	if from <= len(q.ids) {
		t.IDs = slices.Clone(q.ids[from:])
	}
	if first, last := from/blockTokens, (q.computed+blockTokens-1)/blockTokens; first < last {
		t.Blocks = slices.Clone(q.blocks[first:last])
	}
	return t
}

func (e *engine) Table(ctx context.Context, leg string, from int) (kvport.Table, error) {
	return e.list(ctx, "table", leg, from, false)
}

func (e *engine) Freeze(ctx context.Context, leg string, from int) (kvport.Table, error) {
	return e.list(ctx, "freeze", leg, from, true)
}

func (e *engine) list(ctx context.Context, call, leg string, from int, freeze bool) (kvport.Table, error) {
	if err := e.enter(ctx, call); err != nil {
		return kvport.Table{}, err
	}
	defer e.mu.Unlock()
	q, err := e.find(leg)
	if err != nil {
		return kvport.Table{}, err
	}
	q.frozen = q.frozen || freeze
	return e.table(q, from), nil
}

func (e *engine) Thaw(ctx context.Context, leg string) error {
	if err := e.enter(ctx, "thaw"); err != nil {
		return err
	}
	defer e.mu.Unlock()
	if e.stubborn {
		return errRefused
	}
	if e.seqs[leg] == nil {
		return kvport.ErrNotFound
	}
	e.seqs[leg].frozen = false
	return nil
}

func (e *engine) Drop(ctx context.Context, leg string) error {
	if err := e.enter(ctx, "drop call"); err != nil {
		return err
	}
	defer e.mu.Unlock()
	if e.stubborn {
		return errRefused
	}
	q := e.seqs[leg]
	if q == nil {
		return kvport.ErrNotFound
	}
	e.remove(q)
	q.conn.push(event{broken: true})
	return nil
}

func (e *engine) Reserve(ctx context.Context, id string, tokens int) ([]uint32, error) {
	if err := e.enter(ctx, "reserve"); err != nil {
		return nil, err
	}
	defer e.mu.Unlock()
	if e.context > 0 && tokens > e.context {
		return nil, errRefused
	}
	r := e.held[id]
	if r == nil {
		r = &reservation{}
	}
	if need := (tokens+blockTokens-1)/blockTokens - len(r.blocks); need > 0 {
		more := e.allocate(need)
		if more == nil || e.away {
			return nil, kvport.ErrFull
		}
		r.blocks = append(r.blocks, more...)
	}
	e.held[id] = r
	return slices.Clone(r.blocks), nil
}

// prefillUntil makes the engine report that it prefills until then.
func (e *engine) prefillUntil(end time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.prefillEnd = end
}

func (e *engine) NextToken(context.Context) (time.Duration, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return max(0, time.Until(e.prefillEnd)), nil
}

func (e *engine) MarkFilled(ctx context.Context, id string, from int, ids []uint32, computed int) error {
	if err := e.enter(ctx, "mark filled"); err != nil {
		return err
	}
	defer e.mu.Unlock()
	r := e.held[id]
	if r == nil {
		return kvport.ErrNotFound
	}
	if from != len(r.ids) || r.seq != nil {
		e.mistakes = append(e.mistakes, fmt.Sprintf("%s is filled from %d, has %d", id, from, len(r.ids)))
	}
	r.ids, r.computed = append(r.ids, ids...), computed
	return nil
}

func (e *engine) Release(ctx context.Context, id string) error {
	if err := e.enter(ctx, "release"); err != nil {
		return err
	}
	defer e.mu.Unlock()
	if e.stubborn {
		return errRefused
	}
	if r := e.held[id]; r != nil && r.seq == nil {
		e.freeBlocks(r.blocks)
		delete(e.held, id)
	}
	return nil
}
