package kvport

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/internal/blocktable"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// endlessStep is an engine in the middle of a step that does not end: only calls that run immediately are made.
type endlessStep struct {
	mu sync.Mutex
	s  *batch.Scheduler
}

func (e *endlessStep) Do(ctx context.Context, when blocktable.RunPoint, f func(*batch.Scheduler)) error {
	if when == blocktable.AtBoundary {
		<-ctx.Done()
		return ctx.Err()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	f(e.s)
	return nil
}

func (e *endlessStep) NextToken(*batch.Scheduler) time.Duration { return time.Second }
func (e *endlessStep) Leg(name string) (*batch.Sequence, bool)  { return &batch.Sequence{}, name == "a" }
func (e *endlessStep) reserved() int                            { e.mu.Lock(); defer e.mu.Unlock(); return e.s.Stats().Reserved }
func (e *endlessStep) waitFor(t *testing.T, what string, blocks int) {
	t.Helper()
	testkit.WaitFor(t, what, func() bool { return e.reserved() == blocks })
}

// serveEndless serves the table of an engine in an endless step, and returns a function that connects to it.
func serveEndless(t *testing.T) (*endlessStep, func() *api.Conn) {
	t.Helper()
	dir := testkit.Must(os.MkdirTemp("", "kv")) // the path of t.TempDir is too long for sockets
	t.Cleanup(func() { os.RemoveAll(dir) })
	pool := testkit.Must(kv.NewPool(kv.Layout{Blocks: 32, BlockTokens: 4, SlotBytes: 16, Regions: 2}))
	t.Cleanup(func() { pool.Close() })
	e := &endlessStep{s: testkit.Must(batch.New(batch.Config{
		Model: model.New("m", testkit.Must(model.NewVocabulary())), Pool: pool, Profile: cost.Profile{D0: 1}, MaxBatch: 4, MaxTokens: 64,
	}))}
	s := testkit.Must(New(Config{
		Dir: dir, Fingerprint: "f", Table: testkit.Must(blocktable.New(blocktable.Config{Pool: pool, Engine: e, Context: 128})), Pool: pool,
		Describe: api.Table{Model: "m", BlockTokens: 4, TokenBytes: 9},
	}))
	t.Cleanup(testkit.Run(t, s.Run))
	return e, func() *api.Conn {
		var c *net.UnixConn
		testkit.WaitFor(t, "the socket", func() (ok bool) {
			var err error
			c, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, api.Socket), Net: "unix"})
			return err == nil
		})
		t.Cleanup(func() { c.Close() })
		conn := api.NewConn(c)
		testkit.NoError(t, conn.Write(api.Frame{Hello: &api.Hello{Version: api.Version, Replica: "r0", Incarnation: 1}}))
		f, err := conn.Read()
		testkit.NoError(t, err)
		if w := f.Welcome; w.Table == nil || *w.Table != (api.Table{Model: "m", BlockTokens: 4, TokenBytes: 9}) || w.Ranks != 2 || len(w.Regions) != 2 || w.Regions[1].Rank != 1 {
			t.Errorf("%+v", w)
		}
		return conn
	}
}

// A call that waits for the end of the step delays no other, and ends when it is cancelled.
func TestCancel(t *testing.T) {
	_, connect := serveEndless(t)
	conn := connect()
	freeze, schedule := api.Frame{Call: &api.Call{ID: 1, Op: api.Freeze, Leg: "a"}}, api.Frame{Call: &api.Call{ID: 2, Op: api.Schedule}}
	testkit.NoError(t, conn.Write(freeze))
	testkit.NoError(t, conn.Write(schedule))
	f, err := conn.Read()
	testkit.NoError(t, err)
	if a := f.Answer; a == nil || a.ID != 2 || a.NextTokenUS != 1e6 {
		t.Errorf("%+v", f)
	}
	testkit.NoError(t, conn.Write(api.Frame{Cancel: &api.Cancel{ID: 1}}))
	if f, err = conn.Read(); err != nil || f.Answer.ID != 1 || f.Answer.Code != api.Unavailable {
		t.Errorf("%+v, %v", f.Answer, err)
	}
	// Two calls of one number end the connection.
	testkit.NoError(t, conn.Write(freeze))
	testkit.NoError(t, conn.Write(freeze))
	if f, err = conn.Read(); err == nil && f.Answer == nil {
		t.Errorf("%+v", f)
	}
}

// The end of a connection undoes what its calls have made, and no other's.
func TestConnectionEnds(t *testing.T) {
	e, connect := serveEndless(t)
	mine, other := connect(), connect()
	for i, c := range []*api.Conn{mine, other} {
		testkit.NoError(t, c.Write(api.Frame{Call: &api.Call{ID: 1, Op: api.Reserve, Reservation: []string{"mine", "other"}[i], Tokens: 16}}))
		if f, err := c.Read(); err != nil || len(f.Answer.Blocks) != 4 {
			t.Errorf("%+v, %v", f.Answer, err)
		}
	}
	e.waitFor(t, "both reservations", 8)
	testkit.NoError(t, mine.Write(api.Frame{Call: &api.Call{ID: 2, Op: api.Freeze, Leg: "a"}})) // it waits
	mine.Close()
	e.waitFor(t, "the end of one", 4)
	testkit.NoError(t, other.Write(api.Frame{Fetched: &api.Fetched{ID: 1}})) // which an engine with a table has not asked for
	if f, err := other.Read(); err == nil {
		t.Errorf("%+v", f)
	}
	e.waitFor(t, "the end of the other", 0)
	if _, err := other.Call(t.Context(), api.Call{Op: api.Schedule}); !errors.Is(err, api.ErrConnectionEnded) {
		t.Errorf("a call that cannot be sent: %v", err)
	}
}

// Calls end with their connection, and so do those after it.
func TestCallOfEndedConnection(t *testing.T) {
	_, connect := serveEndless(t)
	conn := connect()
	done := make(chan error, 1)
	go func() {
		_, err := conn.Call(t.Context(), api.Call{Op: api.Freeze, Leg: "a"})
		done <- err
	}()
	time.Sleep(10 * time.Millisecond) // it is sent
	conn.Fail()
	for range 2 {
		if err := <-done; !errors.Is(err, api.ErrConnectionEnded) {
			t.Error(err)
		}
		_, err := conn.Call(t.Context(), api.Call{Op: api.Schedule})
		done <- err
	}
}
