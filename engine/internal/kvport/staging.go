package kvport

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
)

// staging is one connection of an engine that keeps its own cache, and its staging memory.
type staging struct {
	conn  *api.Conn
	hello api.Hello

	mu      sync.Mutex
	pool    *kv.Pool // nil after close
	free    []uint32 // slots that are the engine's
	offers  map[string][]uint32
	fetches map[uint64]*fetching
	lastID  uint64
}

// fetching is a fetch whose slots are the migrator's.
type fetching struct {
	slots   []uint32
	done    chan struct{} // closed when they are the engine's again, or the session ends
	err     error         // set before done is closed
	givenUp bool          // guarded by the session's mu
}

// errFull says that the staging memory has too few free slots.
var errFull = errors.New("the staging memory is full")

// errEnded ends the fetches of a session that has ended.
var errEnded = errors.New("the migrator's connection has ended")

func newStaging(conn *api.Conn, hello api.Hello, pool *kv.Pool) *staging {
	x := &staging{conn: conn, hello: hello, pool: pool, offers: make(map[string][]uint32), fetches: make(map[uint64]*fetching)}
	for i := range pool.Blocks {
		x.free = append(x.free, uint32(i))
	}
	return x
}

// close ends the fetches and frees the memory.
func (x *staging) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, f := range x.fetches {
		f.err = errEnded
		close(f.done)
	}
	x.fetches = nil
	_ = x.pool.Close()
	x.pool = nil
}

// read handles frames until the connection ends.
func (x *staging) read() error {
	for {
		f, err := x.conn.Read()
		if err == nil {
			err = x.handle(f)
		}
		if err != nil {
			return err
		}
	}
}

// handle handles one frame.
func (x *staging) handle(f api.Frame) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case f.Released != nil:
		slots := x.offers[f.Released.Handle]
		delete(x.offers, f.Released.Handle)
		x.free = append(x.free, slots...)
		return nil
	case f.Fetched != nil:
		q := x.fetches[f.Fetched.ID]
		if q == nil {
			return fmt.Errorf("kv.sock: fetched %d, which was not asked for", f.Fetched.ID)
		}
		delete(x.fetches, f.Fetched.ID)
		if f.Fetched.Error != "" {
			q.err = errors.New(f.Fetched.Error)
		}
		if q.givenUp {
			x.free = append(x.free, q.slots...)
		}
		close(q.done) // else fetch frees the slots once it has copied them
		return nil
	}
	return fmt.Errorf("kv.sock: unexpected %s", f.Name())
}

// takeLocked takes n free slots.
func (x *staging) takeLocked(n int) ([]uint32, error) {
	switch {
	case x.pool == nil:
		return nil, errEnded
	case n > len(x.free):
		return nil, fmt.Errorf("%w: %d of %d slots are free, %d are needed", errFull, len(x.free), x.pool.Blocks, n)
	}
	slots := append([]uint32(nil), x.free[len(x.free)-n:]...)
	x.free = x.free[:len(x.free)-n]
	return slots, nil
}

// offer copies blocks into slots and offers them.
func (x *staging) offer(handle, digest string, blocks []byte) error {
	o := api.Offer{Handle: handle, Digest: digest}
	err := x.stage(&o, blocks)
	if errors.Is(err, errFull) {
		o = api.Offer{Handle: handle, Error: err.Error()}
		err = nil
	}
	if err != nil {
		return err
	}
	if err := x.conn.Write(api.Frame{Offer: &o}); err != nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.offers, o.Handle)
		x.free = append(x.free, o.Blocks...)
		return err
	}
	return nil
}

// stage copies blocks into slots, which are the migrator's from now on.
func (x *staging) stage(o *api.Offer, blocks []byte) (err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.pool == nil {
		return errEnded
	}
	size := x.pool.BlockBytes()
	if o.Blocks, err = x.takeLocked(len(blocks) / size); err != nil {
		return err
	}
	for i, slot := range o.Blocks {
		b := blocks[i*size : (i+1)*size]
		copy(x.pool.Slot(kv.Block(slot), 0), b)
		o.Sums = append(o.Sums, crc32.ChecksumIEEE(b))
	}
	x.offers[o.Handle] = o.Blocks
	return nil
}

// fetch asks for blocks and waits for them. A fetch that is given up keeps its slots until the
// migrator has answered: it may still write to them.
func (x *staging) fetch(ctx context.Context, w Want) ([]byte, error) {
	q := &fetching{done: make(chan struct{})}
	x.mu.Lock()
	var err error
	if q.slots, err = x.takeLocked(w.Blocks); err != nil {
		x.mu.Unlock()
		return nil, err
	}
	x.lastID++
	id := x.lastID
	f := api.Frame{Fetch: &api.Fetch{ID: id, Holder: w.Holder, Handle: w.Handle, Digest: w.Digest, First: w.First, Blocks: q.slots}}
	if err := f.Validate(); err != nil { // holder and handle come from a client
		x.free = append(x.free, q.slots...)
		x.mu.Unlock()
		return nil, err
	}
	x.fetches[id] = q
	x.mu.Unlock()
	if err := x.conn.Write(f); err != nil {
		return nil, err
	}
	select {
	case <-q.done:
	case <-ctx.Done():
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.fetches[id] == q {
			q.givenUp = true
			return nil, context.Cause(ctx)
		}
		return x.finishLocked(q) // it came at the same moment
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.finishLocked(q)
}

// finishLocked copies what was fetched and frees the slots.
func (x *staging) finishLocked(q *fetching) (all []byte, err error) {
	if x.pool == nil {
		return nil, errEnded
	}
	for _, slot := range q.slots {
		if q.err == nil {
			all = append(all, x.pool.Slot(kv.Block(slot), 0)...)
		}
	}
	x.free = append(x.free, q.slots...)
	return all, q.err
}
