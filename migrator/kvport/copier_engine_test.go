package kvport

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
	"github.com/cascadeinfer/cascade/policies"
)

const (
	blockTokens = 4
	poolBlocks  = 16
	regionBytes = 8
)

var layout = transport.Layout{Blocks: poolBlocks, Regions: []transport.Region{
	{Offset: 0, Stride: regionBytes, Bytes: regionBytes},
	{Offset: poolBlocks * regionBytes, Stride: regionBytes, Bytes: regionBytes},
}}

// engine is a prefix cache of real bytes: the content of a block is a function of all ids before its end
// and of the root. Every call passes the gate, which may fail it before or after its effect.
type engine struct {
	gate func(call string) error // nil: none; errLost lets the call take effect
	// pinsBy is the size of the blocks that PinPrefix says; 0: the right one.
	pinsBy int

	mu        sync.Mutex
	memory    *transport.Memory
	cache     map[string]uint32
	refs      [poolBlocks]int
	pins      map[string]*reserved
	abandoned int
}

type reserved struct {
	prefix Prefix
	cached int
	blocks []uint32
}

// errLost is the answer that does not arrive.
var errLost = errors.New("the answer is lost")

func newEngine() *engine {
	e := &engine{cache: make(map[string]uint32), pins: make(map[string]*reserved)}
	e.restart()
	return e
}

// restart gives the engine an empty memory and an empty cache.
func (e *engine) restart() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.memory = &transport.Memory{Layout: layout, Bytes: make([]byte, layout.MinSize())}
	clear(e.cache)
	clear(e.pins)
	e.refs = [poolBlocks]int{}
}

func (e *engine) Memory() (*transport.Memory, bool) {
	if e.gate != nil {
		e.gate("memory")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.memory, e.memory != nil
}

func (e *engine) Description() (Description, bool) {
	return Description{BlockTokens: blockTokens, TokenBytes: 1000, Fingerprint: 77}, true
}

// key names the content of the n-th block of a prefix.
func key(p Prefix, n int) string {
	return fmt.Sprint(p.Model, "/", p.Salt, "/", p.IDs[:(n+1)*blockTokens])
}

// content is the bytes of a block with a key, in one region.
func content(key string, region int) []byte {
	x := uint64(region + 1)
	for _, c := range []byte(key) {
		x = (x ^ uint64(c)) * 0x9e3779b97f4a7c15
	}
	return binary.LittleEndian.AppendUint64(nil, x)
}

func (e *engine) bytesOf(block uint32, region int) []byte {
	return e.memory.Bytes[region*poolBlocks*regionBytes+int(block)*regionBytes:][:regionBytes]
}

// compute does what a request does: the cache has its whole blocks afterwards.
func (e *engine) compute(p Prefix) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for n := range len(p.IDs) / blockTokens {
		k := key(p, n)
		if _, ok := e.cache[k]; ok {
			continue
		}
		b, ok := e.takeLocked()
		if !ok {
			return
		}
		for r := range 2 {
			copy(e.bytesOf(b, r), content(k, r))
		}
		e.cache[k] = b
		e.refs[b]--
	}
}

// takeLocked returns a block without references, which leaves the cache, with one.
func (e *engine) takeLocked() (uint32, bool) {
	cached := make(map[uint32]string)
	for k, b := range e.cache {
		cached[b] = k
	}
	for pass := range 2 { // free ones first
		for b := range uint32(poolBlocks) {
			if k, ok := cached[b]; e.refs[b] == 0 && (!ok || pass == 1) {
				delete(e.cache, k)
				e.refs[b]++
				return b, true
			}
		}
	}
	return 0, false
}

func (e *engine) pass(ctx context.Context, call string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if e.gate == nil {
		return nil
	}
	return e.gate(call)
}

func (e *engine) PinPrefix(ctx context.Context, id string, p Prefix, reserve bool) (PinnedPrefix, error) {
	bad := e.pass(ctx, "pin")
	if bad != nil && !errors.Is(bad, errLost) {
		return PinnedPrefix{}, bad
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r := &reserved{prefix: Prefix{Model: p.Model, Salt: p.Salt, IDs: slices.Clone(p.IDs)}}
	for n := range len(p.IDs) / blockTokens {
		b, ok := e.cache[key(p, n)]
		if !ok {
			break
		}
		r.blocks = append(r.blocks, b)
	}
	r.cached = len(r.blocks)
	for _, b := range r.blocks {
		e.refs[b]++
	}
	for reserve && len(r.blocks) < len(p.IDs)/blockTokens {
		b, ok := e.takeLocked()
		if !ok {
			for _, b := range r.blocks {
				e.refs[b]--
			}
			return PinnedPrefix{}, ErrFull
		}
		r.blocks = append(r.blocks, b)
	}
	e.pins[id] = r
	return PinnedPrefix{Cached: r.cached * blockTokens, BlockTokens: cmp.Or(e.pinsBy, blockTokens), Blocks: slices.Clone(r.blocks)}, bad
}

func (e *engine) CommitPrefix(ctx context.Context, id string, tokens int) error {
	bad := e.pass(ctx, "commit")
	if bad != nil && !errors.Is(bad, errLost) {
		return bad
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.pins[id]
	if r == nil {
		return ErrNotFound
	}
	for n := r.cached; n < tokens/blockTokens; n++ {
		if k := key(r.prefix, n); e.cache[k] == 0 {
			e.cache[k] = r.blocks[n]
		}
	}
	e.releaseLocked(id)
	return bad
}

func (e *engine) releaseLocked(id string) {
	if r := e.pins[id]; r != nil {
		for _, b := range r.blocks {
			e.refs[b]--
		}
		delete(e.pins, id)
	}
}

func (e *engine) Release(ctx context.Context, id string) error {
	if bad := e.pass(ctx, "release"); bad != nil {
		return bad
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.releaseLocked(id)
	return nil
}

func (e *engine) AbandonSession(error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.abandoned++
	for id := range e.pins {
		e.releaseLocked(id)
	}
}

// check compares every cached block with its content, and returns how many tokens of a prefix are cached.
func (e *engine) check(t *testing.T, p Prefix) (cached int) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for k, b := range e.cache {
		for r := range 2 {
			if !slices.Equal(e.bytesOf(b, r), content(k, r)) {
				t.Errorf("region %d of block %d is not that of %s", r, b, k)
			}
		}
	}
	for n := range len(p.IDs) / blockTokens {
		if _, ok := e.cache[key(p, n)]; !ok {
			break
		}
		cached += blockTokens
	}
	return cached
}

// pinned returns how many references and reservations there are.
func (e *engine) pinned() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, refs := range e.refs {
		n += refs
	}
	return n + len(e.pins)
}

// world is two replicas, a and b, whose migrators are connected. A pull is from a to b.
type world struct {
	a, b      *engine
	holder    *Copier // of a
	puller    *Copier // of b
	faults    *transporttest.Faults
	transport transporttest.Network
	// ask passes the calls of b to a; tests change it.
	ask func(ctx context.Context, q *api.FetchPrefixRequest, serve func(context.Context, *api.FetchPrefixRequest) (*api.FetchPrefixAnswer, error)) (*api.FetchPrefixAnswer, error)
	hooks
	away  bool // b cannot receive
	calls sync.WaitGroup
	// stopHolder and stopPuller end Run of each, and return when it has.
	stopHolder, stopPuller func()
}

// FetchPrefix is the network of b.
func (w *world) FetchPrefix(ctx context.Context, to policies.ReplicaID, q *api.FetchPrefixRequest) (*api.FetchPrefixAnswer, error) {
	if to != "a" {
		return nil, fmt.Errorf("no replica %s", to)
	}
	q.From, q.To = "b", "a"
	if w.ask != nil {
		return w.ask(ctx, q, w.serve)
	}
	return w.serve(ctx, q)
}

func (w *world) serve(ctx context.Context, q *api.FetchPrefixRequest) (*api.FetchPrefixAnswer, error) {
	a, err := callPeer(&w.calls, func(answer func(*api.FetchPrefixAnswer) error) error { return w.holder.Serve(ctx, "b", q, answer) })
	if err != nil {
		return nil, fmt.Errorf("peer a: %w", err)
	}
	return a, nil
}

// start runs the two replicas until the end of the test, when nothing may be pinned any more.
func start(t *testing.T, change func(w *world, a, b *CopierConfig)) *world {
	t.Helper()
	w := &world{a: newEngine(), b: newEngine(), faults: &transporttest.Faults{}}
	setA, setB := newPaths(t, &w.transport, "a", w.a, nil, &w.hooks), newPaths(t, &w.transport, "b", w.b, w.faults, &w.hooks)
	for _, set := range []*transport.Paths{setA, setB} {
		testkit.WaitFor(t, "the transport runs", func() bool { return canExport(set) })
	}
	ca := CopierConfig{Engine: w.a, Network: w, Paths: setA}
	cb := CopierConfig{Engine: w.b, Network: w, Paths: setB, CanReceive: func() bool { return !w.away }}
	if change != nil {
		change(w, &ca, &cb)
	}
	w.holder, w.puller = testkit.Must(NewCopier(ca)), testkit.Must(NewCopier(cb))
	w.stopHolder, w.stopPuller = testkit.Run(t, w.holder.Run), testkit.Run(t, w.puller.Run)
	for _, c := range []*Copier{w.holder, w.puller} {
		testkit.WaitFor(t, "it runs", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.ctx != nil })
	}
	t.Cleanup(func() {
		w.waitUnpinned(t)
		w.calls.Wait()
	})
	return w
}

// waitUnpinned waits until both engines have released everything.
func (w *world) waitUnpinned(t *testing.T) {
	t.Helper()
	for name, e := range map[string]*engine{"a": w.a, "b": w.b} {
		testkit.WaitFor(t, "the engine of "+name+" has nothing pinned", func() bool { return e.pinned() == 0 })
	}
}

// waitFree waits until no pull has a place, at either replica.
func (w *world) waitFree(t *testing.T) {
	t.Helper()
	testkit.WaitFor(t, "all places are free", func() bool {
		return len(w.puller.pulling)+len(w.puller.serving)+len(w.holder.pulling)+len(w.holder.serving) == 0
	})
	for _, places := range []chan struct{}{w.puller.pulling, w.puller.serving, w.holder.pulling, w.holder.serving} {
		for range cap(places) {
			places <- struct{}{} // after all that had a place, as the memory model has it
		}
		for range cap(places) {
			<-places
		}
	}
}

// prefix returns one of so many tokens; another seed gives another one.
func prefix(tokens, seed int) Prefix {
	p := Prefix{Model: "m", IDs: make([]uint32, tokens)}
	for i := range p.IDs {
		p.IDs[i] = uint32(100*seed + i)
	}
	return p
}

var refused = status.Error(codes.Unavailable, "the engine refuses")
