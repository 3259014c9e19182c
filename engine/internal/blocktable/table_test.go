package blocktable

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var vocabulary = sync.OnceValues(model.NewVocabulary)

// engine is a scheduler without a clock: calls run on the goroutine of the caller.
type engine struct {
	t         testing.TB
	mu        sync.Mutex
	scheduler *batch.Scheduler
	pool      *kv.Pool
	legs      map[string]*batch.Sequence
}

// NextToken says that every step takes a second.
func (e *engine) NextToken(*batch.Scheduler) time.Duration { return time.Second }

func (e *engine) Do(ctx context.Context, _ RunPoint, f func(*batch.Scheduler)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.scheduler.Settle()
	f(e.scheduler)
	return nil
}

func (e *engine) Leg(name string) (*batch.Sequence, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	q, ok := e.legs[name]
	return q, ok
}

// add starts a request.
func (e *engine) add(name string, prompt, output int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ids := make([]model.Token, prompt)
	for i := range ids {
		ids[i] = model.Token(100 + i)
	}
	q := batch.NewSequence(batch.Request{Prompt: ids, MaxOutput: output, IgnoreEOS: true}, e.pool.BlockTokens)
	e.legs[name] = q
	e.scheduler.Add(q)
}

func (e *engine) step(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for range n {
		e.scheduler.Step()
	}
}

func (e *engine) stats() batch.Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.scheduler.Stats()
}

// newTable returns the table of an engine with 32 blocks of 4 tokens, in two regions.
func newTable(t testing.TB) (*Table, *engine) {
	t.Helper()
	v, err := vocabulary()
	testkit.NoError(t, err)
	pool, err := kv.NewPool(kv.Layout{Blocks: 32, BlockTokens: 4, SlotBytes: 16, Regions: 2})
	testkit.NoError(t, err)
	t.Cleanup(func() { pool.Close() })
	e := &engine{t: t, pool: pool, legs: make(map[string]*batch.Sequence)}
	e.scheduler, err = batch.New(batch.Config{Model: model.New("m", v), Pool: pool, Profile: cost.Profile{D0: 1}, MaxBatch: 4, MaxTokens: 64})
	testkit.NoError(t, err)
	table, err := New(Config{Pool: pool, Engine: e, Context: 128, Root: root})
	testkit.NoError(t, err)
	return table, e
}

// openSession opens a session.
func openSession(t testing.TB, table *Table) *Session {
	t.Helper()
	x, err := table.Open(context.Background())
	testkit.NoError(t, err)
	return x
}

// call makes a call and returns why it was refused.
func call(x *Session, q api.Call) error {
	_, err := x.Call(context.Background(), &q)
	return err
}

// code returns the code of a refusal, "" for none.
func code(err error) api.Code {
	if r := (*api.Refusal)(nil); errors.As(err, &r) {
		return r.Code
	}
	return ""
}

// Invalid requests get an error that names the mistake.
func TestCodes(t *testing.T) {
	table, e := newTable(t)
	mine, other := openSession(t, table), openSession(t, table)
	defer other.End()
	defer mine.End()
	e.add("a", 6, 20)
	freeze := func(x *Session, leg string, from uint64) error {
		return call(x, api.Call{Op: api.Freeze, Leg: leg, From: from})
	}
	reserve := func(x *Session, r string, tokens uint64) error {
		return call(x, api.Call{Op: api.Reserve, Reservation: r, Tokens: tokens})
	}
	filled := func(r string, from uint64, computed uint64, ids ...uint32) error {
		return call(mine, api.Call{Op: api.Fill, Reservation: r, From: from, IDs: ids, Computed: computed})
	}
	for i, x := range []struct {
		err  error
		want api.Code
	}{
		{freeze(mine, "b", 0), api.NotFound},
		{freeze(mine, "a", 0), api.NotComputed}, // the request waits for its first token
		{func() error { e.step(2); return call(mine, api.Call{Op: "later"}) }(), api.Unsupported},
		{freeze(mine, "a", 1<<63), api.Invalid},
		{freeze(mine, "a", 8), ""},
		{freeze(other, "a", 8), ""},
		{reserve(mine, "", 1), api.Invalid},
		{reserve(mine, strings.Repeat("r", api.MaxName+1), 1), api.Invalid},
		{reserve(mine, "r", 129), api.Invalid},
		{reserve(mine, "r", 1<<63), api.Invalid},
		{reserve(mine, "r", 128), api.Full},
		{filled("r", 0, 0), api.NotFound}, // the failed call has reserved nothing
		{reserve(mine, "r", 0), ""},
		{reserve(mine, "r", 8), ""},
		{reserve(other, "r", 8), api.InUse},
		{filled("r", 0, 1<<63, 1), api.Invalid},
		{filled("r", 1<<63, 0, 1), api.Invalid},
		{filled("r", 0, 1, uint32(model.VocabularySize)), api.Invalid},
		{filled("r", 0, 3, 1, 2), api.Invalid},
		{filled("r", 0, 1, 1, 2), ""},
		{filled("r", 0, 1, 1, 2), api.Invalid}, // the ids continue at 2
		{call(mine, api.Call{Op: api.Release, Reservation: "unknown"}), ""},
		{call(mine, api.Call{Op: api.Release, Reservation: "r"}), ""},
		{filled("r", 2, 1), api.NotFound},
		{call(mine, api.Call{Op: api.Drop, Leg: "a"}), ""},
		{call(mine, api.Call{Op: api.Drop, Leg: "a"}), api.NotFound},
		{freeze(mine, "a", 0), api.NotFound},
	} {
		if got := code(x.err); got != x.want {
			t.Errorf("case %d: %v, want %v", i, x.err, x.want)
		}
	}
	if st := e.stats(); st.UsedBlocks != 0 {
		t.Errorf("%+v", st)
	}
}

// FuzzCalls makes arbitrary calls in any order with any numbers: nothing panics, the counters
// agree, and when all sessions and requests have ended, every block is free.
func FuzzCalls(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"))
	f.Add([]byte("\x00\x00\x09\x00\x14\x00\x0a\x02\x01\x00\x00\x20\x02\x00\x00\x04\x04\x04\x00\x00\x05\x00\x00\x09\x08\x00\x0a\x03\x05\x00\x06\x00\x07\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 512 {
			return
		}
		table, e := newTable(t)
		next := func() byte {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return b
		}
		// Return mostly small numbers, and sometimes one of any size.
		number := func() uint64 {
			b := next()
			if b < 0xf0 {
				return uint64(b)
			}
			var wide [8]byte
			for i := range wide {
				wide[i] = next()
			}
			return binary.LittleEndian.Uint64(wide[:])
		}
		name := func() string { return fmt.Sprint(next() % 3) }
		sessions := []*Session{openSession(t, table)}
		defer func() {
			for _, x := range sessions {
				x.End()
			}
		}()
		session := func() *Session { return sessions[int(next())%len(sessions)] }
		ctx := context.Background()
		for len(data) > 0 {
			switch next() % 14 {
			case 0:
				sessions = append(sessions, openSession(t, table))
			case 1:
				session().End()
			case 2:
				call(session(), api.Call{Op: api.Reserve, Reservation: name(), Tokens: number()})
			case 3:
				r, ids := name(), make([]uint32, next()%40)
				for i := range ids {
					ids[i] = uint32(next())
				}
				call(session(), api.Call{Op: api.Fill, Reservation: r, From: number(), IDs: ids, Computed: number()})
			case 12:
				ids := make([]uint32, next()%40)
				for i := range ids { // as add's, or others
					ids[i] = uint32(100 + i + int(next()%32/31))
				}
				r, err := session().Call(ctx, &api.Call{Op: api.Pin, Reservation: name(), IDs: ids, Rest: next()%2 > 0})
				if err == nil && (r.Cached > uint64(len(ids)) || r.Cached/4 > uint64(len(r.Blocks))) {
					t.Errorf("%d ids: pinned %v", len(ids), r)
				}
			case 13:
				call(session(), api.Call{Op: api.Commit, Reservation: name(), Tokens: number()})
			case 4:
				call(session(), api.Call{Op: api.Release, Reservation: name()})
			case 5:
				r, err := session().Call(ctx, &api.Call{Op: api.List, Leg: name(), From: number()})
				if err == nil && (r.Computed > r.Length || uint64(len(r.IDs)) > r.Length) {
					t.Errorf("table %v", r)
				}
			case 6:
				call(session(), api.Call{Op: api.Freeze, Leg: name(), From: number()})
			case 7:
				call(session(), api.Call{Op: api.Thaw, Leg: name()})
			case 8:
				call(session(), api.Call{Op: api.Drop, Leg: name()})
			case 9:
				if leg := name(); e.legs[leg] == nil {
					e.add(leg, 1+int(next()%30), 1+int(next()%60))
				}
			case 10:
				e.step(int(next() % 8))
			case 11:
				leg, r, output := name(), name(), 1+int(next()%20)
				if e.legs[leg] != nil {
					break
				}
				e.Do(ctx, Immediately, func(s *batch.Scheduler) {
					if q, err := table.Adopt(s, r, func(length int) (batch.Request, error) {
						return batch.Request{MaxOutput: max(1, min(output, 128-length)), IgnoreEOS: true}, nil
					}); err == nil {
						e.legs[leg] = q
					}
				})
			}
			reserved := 0
			for _, r := range table.reservations {
				reserved += len(r.Blocks())
			}
			if st := e.stats(); st.Reserved != reserved {
				t.Fatalf("%+v, and reservations of %d blocks", st, reserved)
			}
		}
		for _, x := range sessions {
			x.End()
		}
		for _, q := range e.legs {
			e.scheduler.Abort(q)
		}
		if st := e.stats(); st.UsedBlocks+st.Reserved+st.Frozen+st.Running+st.Waiting != 0 {
			t.Fatalf("leaked: %+v", st)
		}
	})
}
