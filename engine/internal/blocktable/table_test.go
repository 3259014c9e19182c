package blocktable

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
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
func newTable(t testing.TB, dir string) (*Table, *engine) {
	t.Helper()
	v, err := vocabulary()
	if err != nil {
		t.Fatal(err)
	}
	pool, err := kv.NewPool(kv.Layout{Blocks: 32, BlockTokens: 4, SlotBytes: 16, Regions: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pool.Close() })
	e := &engine{t: t, pool: pool, legs: make(map[string]*batch.Sequence)}
	e.scheduler, err = batch.New(batch.Config{Model: model.New("m", v), Pool: pool, Profile: cost.Profile{D0: 1}, MaxBatch: 4, MaxTokens: 64})
	if err != nil {
		t.Fatal(err)
	}
	table, err := New(Config{Dir: dir, Pool: pool, Engine: e, Model: "m", Context: 128, TokenBytes: 131072, Root: root})
	if err != nil {
		t.Fatal(err)
	}
	return table, e
}

// session is the server's end of a Session call.
type session struct {
	grpc.ServerStream
	ctx  context.Context
	name chan string
}

func (s *session) Context() context.Context       { return s.ctx }
func (s *session) Send(r *api.SessionReply) error { s.name <- r.Session; return nil }
func (s *session) SetHeader(metadata.MD) error    { return nil }
func (s *session) RecvMsg(any) error              { return nil }

// openSession opens a session; leave ends it and waits for its end.
func openSession(t testing.TB, table *Table) (name string, leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &session{ctx: ctx, name: make(chan string, 1)}
	over := make(chan error, 1)
	go func() { over <- table.Session(&api.SessionRequest{}, s) }()
	return <-s.name, sync.OnceFunc(func() { cancel(); <-over })
}

func TestDescribe(t *testing.T) {
	table, _ := newTable(t, "d")
	d, err := table.Describe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if d.BlockTokens != 4 || d.Blocks != 32 || d.PoolBytes != 2048 || d.TokenBytes != 131072 || d.Model != "m" || len(d.Regions) != 2 {
		t.Errorf("%v", d)
	}
	for r, want := range []uint64{0, 32} {
		if g := d.Regions[r]; g.Offset != want || g.Stride != 64 || g.Bytes != 32 {
			t.Errorf("region %d: %v", r, g)
		}
	}
	for _, x := range []struct {
		same  bool
		model string
		l     kv.Layout
	}{
		{true, "m", kv.Layout{Blocks: 7, BlockTokens: 4, SlotBytes: 16, Regions: 2}},
		{false, "n", kv.Layout{Blocks: 32, BlockTokens: 4, SlotBytes: 16, Regions: 2}},
		{false, "m", kv.Layout{Blocks: 32, BlockTokens: 8, SlotBytes: 16, Regions: 2}},
		{false, "m", kv.Layout{Blocks: 32, BlockTokens: 4, SlotBytes: 24, Regions: 2}},
		{false, "m", kv.Layout{Blocks: 32, BlockTokens: 4, SlotBytes: 16, Regions: 1}},
	} {
		if got := describe(Config{Model: x.model, Pool: &kv.Pool{Layout: x.l}}).Fingerprint == d.Fingerprint; got != x.same {
			t.Errorf("%+v: the same fingerprint: %v", x, got)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	_, e := newTable(t, "d")
	uneven := kv.Pool{Layout: e.pool.Layout}
	uneven.Regions = 3
	for name, c := range map[string]Config{
		"no pool":   {Dir: "d", Engine: e},
		"no dir":    {Pool: e.pool, Engine: e},
		"long dir":  {Dir: strings.Repeat("d", MaxDir+1), Pool: e.pool, Engine: e},
		"3 regions": {Dir: "d", Pool: &uneven, Engine: e},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// Invalid requests get an error that names the mistake.
func TestCodes(t *testing.T) {
	table, e := newTable(t, "d")
	name, leave := openSession(t, table)
	defer leave()
	other, leaveOther := openSession(t, table)
	defer leaveOther()
	e.add("a", 6, 20)
	ctx := t.Context()
	freeze := func(session, leg string, from uint64) error {
		_, err := table.Freeze(ctx, &api.TableRequest{Session: session, Leg: leg, From: from})
		return err
	}
	reserve := func(session, r string, tokens uint64) error {
		_, err := table.Reserve(ctx, &api.ReserveRequest{Session: session, Reservation: r, Tokens: tokens})
		return err
	}
	filled := func(r string, from uint64, computed uint64, ids ...uint32) error {
		_, err := table.MarkFilled(ctx, &api.MarkFilledRequest{Reservation: r, From: from, Ids: ids, Computed: computed})
		return err
	}
	for i, x := range []struct {
		err  error
		want codes.Code
	}{
		{freeze(name, "b", 0), codes.NotFound},
		{freeze(name, "a", 0), codes.FailedPrecondition}, // the request waits for its first token
		{func() error { e.step(2); return freeze("", "a", 0) }(), codes.NotFound},
		{freeze("zz", "a", 0), codes.NotFound},
		{freeze(name, "a", 1<<63), codes.InvalidArgument},
		{freeze(name, "a", 8), codes.OK},
		{freeze(other, "a", 8), codes.OK},
		{reserve("", "r", 1), codes.NotFound},
		{reserve(name, "", 1), codes.InvalidArgument},
		{reserve(name, strings.Repeat("r", MaxName+1), 1), codes.InvalidArgument},
		{reserve(name, "r", 129), codes.InvalidArgument},
		{reserve(name, "r", 1<<63), codes.InvalidArgument},
		{reserve(name, "r", 128), codes.ResourceExhausted},
		{filled("r", 0, 0), codes.NotFound}, // the failed call has reserved nothing
		{reserve(name, "r", 0), codes.OK},
		{reserve(name, "r", 8), codes.OK},
		{reserve(other, "r", 8), codes.AlreadyExists},
		{filled("r", 0, 1<<63, 1), codes.InvalidArgument},
		{filled("r", 1<<63, 0, 1), codes.InvalidArgument},
		{filled("r", 0, 1, uint32(model.VocabularySize)), codes.InvalidArgument},
		{filled("r", 0, 3, 1, 2), codes.InvalidArgument},
		{filled("r", 0, 1, 1, 2), codes.OK},
		{filled("r", 0, 1, 1, 2), codes.InvalidArgument}, // the ids continue at 2
		{second(table.Release(ctx, &api.ReleaseRequest{Reservation: "unknown"})), codes.OK},
		{second(table.Release(ctx, &api.ReleaseRequest{Reservation: "r"})), codes.OK},
		{filled("r", 2, 1), codes.NotFound},
		{second(table.Drop(ctx, &api.LegRequest{Leg: "a"})), codes.OK},
		{second(table.Drop(ctx, &api.LegRequest{Leg: "a"})), codes.NotFound},
		{freeze(name, "a", 0), codes.NotFound},
	} {
		if got := status.Code(x.err); got != x.want {
			t.Errorf("case %d: %v, want %v", i, x.err, x.want)
		}
	}
	if st := e.stats(); st.UsedBlocks != 0 {
		t.Errorf("%+v", st)
	}
}

func second[T any](_ T, err error) error { return err }

// FuzzCalls makes arbitrary calls in any order with any numbers: nothing panics, the counters
// agree, and when all sessions and requests have ended, every block is free.
func FuzzCalls(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"))
	f.Add([]byte("\x00\x00\x09\x00\x14\x00\x0a\x02\x01\x00\x00\x20\x02\x00\x00\x04\x04\x04\x00\x00\x05\x00\x00\x09\x08\x00\x0a\x03\x05\x00\x06\x00\x07\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 512 {
			return
		}
		table, e := newTable(t, "d")
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
		var sessions []string
		var leave []func()
		defer func() {
			for _, f := range leave {
				f()
			}
		}()
		session := func() string {
			if len(sessions) == 0 {
				return name()
			}
			return sessions[int(next())%len(sessions)]
		}
		ctx := context.Background()
		for len(data) > 0 {
			switch next() % 14 {
			case 0:
				s, l := openSession(t, table)
				sessions, leave = append(sessions, s), append(leave, l)
			case 1:
				if len(leave) > 0 {
					leave[int(next())%len(leave)]()
				}
			case 2:
				table.Reserve(ctx, &api.ReserveRequest{Session: session(), Reservation: name(), Tokens: number()})
			case 3:
				r, ids := name(), make([]uint32, next()%40)
				for i := range ids {
					ids[i] = uint32(next())
				}
				table.MarkFilled(ctx, &api.MarkFilledRequest{Reservation: r, From: number(), Ids: ids, Computed: number()})
			case 12:
				ids := make([]uint32, next()%40)
				for i := range ids { // as add's, or others
					ids[i] = uint32(100 + i + int(next()%32/31))
				}
				r, err := table.PinPrefix(ctx, &api.PinPrefixRequest{Session: session(), Reservation: name(), Ids: ids, Reserve: next()%2 > 0})
				if err == nil && (r.Cached > uint64(len(ids)) || r.Cached/4 > uint64(len(r.Blocks))) {
					t.Errorf("%d ids: pinned %v", len(ids), r)
				}
			case 13:
				table.CommitPrefix(ctx, &api.CommitPrefixRequest{Reservation: name(), Tokens: number()})
			case 4:
				table.Release(ctx, &api.ReleaseRequest{Reservation: name()})
			case 5:
				r, err := table.Table(ctx, &api.TableRequest{Leg: name(), From: number()})
				if err == nil && (r.Computed > r.Length || uint64(len(r.Ids)) > r.Length) {
					t.Errorf("table %v", r)
				}
			case 6:
				table.Freeze(ctx, &api.TableRequest{Session: session(), Leg: name(), From: number()})
			case 7:
				table.Thaw(ctx, &api.LegRequest{Leg: name()})
			case 8:
				table.Drop(ctx, &api.LegRequest{Leg: name()})
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
		for _, f := range leave {
			f()
		}
		for _, q := range e.legs {
			e.scheduler.Abort(q)
		}
		if st := e.stats(); st.UsedBlocks+st.Reserved+st.Frozen+st.Running+st.Waiting != 0 {
			t.Fatalf("leaked: %+v", st)
		}
	})
}
