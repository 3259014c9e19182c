package kvport

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// fakeEngine is an engine that shows its table, and answers with its funcs. If a func is missing, it gives a valid
// default answer.
type fakeEngine struct {
	dir  string
	stop func()

	welcome  func(*api.Welcome) // edits it
	reserve  func(*api.Call) (*api.Answer, error)
	table    func(context.Context, *api.Call) (*api.Answer, error)
	thaw     func(*api.Call) error
	pin      func(*api.Call) (*api.Answer, error)
	commit   func(*api.Call) error
	hand     func(*net.UnixConn, []byte, *os.File) // sends the encoded welcome
	schedule atomic.Pointer[api.Answer]            // nil: it has no such call

	memory *os.File

	mu       sync.Mutex
	sessions int
}

const poolBytes = 4096

func plainWelcome() *api.Welcome {
	return &api.Welcome{
		Version: api.Version, Fingerprint: "f", Ranks: 2, Blocks: 16, Handles: []api.Handle{{Kind: api.Memfd, Bytes: poolBytes}},
		Regions: []api.Region{{Rank: 0, Stride: 256, Bytes: 128}, {Rank: 1, Offset: 128, Stride: 256, Bytes: 128}},
		Table:   &api.Table{Model: "m", BlockTokens: 4, TokenBytes: 1000},
	}
}

// privateDir returns a directory that only this user may enter.
func privateDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	testkit.NoError(t, os.Chmod(dir, 0o700))
	return dir
}

// start serves a fake in a directory until stop, or the end of the test.
func (f *fakeEngine) start(t testing.TB, dir string) {
	t.Helper()
	f.dir = dir
	f.memory = testkit.Must(os.CreateTemp(t.TempDir(), "pool"))
	testkit.NoError(t, f.memory.Truncate(poolBytes))
	l := testkit.Must(net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, api.Socket), Net: "unix"}))
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				defer context.AfterFunc(ctx, func() { c.Close() })()
				f.serve(ctx, c)
			})
		}
	})
	f.stop = sync.OnceFunc(func() {
		l.Close()
		cancel()
		all.Wait()
		f.memory.Close()
	})
	t.Cleanup(f.stop)
}

// serve serves one connection.
func (f *fakeEngine) serve(ctx context.Context, c *net.UnixConn) {
	conn := api.NewConn(c)
	if _, err := conn.Read(); err != nil {
		return
	}
	w := plainWelcome()
	if f.welcome != nil {
		f.welcome(w)
	}
	f.count(1)
	defer f.count(-1)
	b := appendInvalid(api.Frame{Welcome: w})
	if f.hand != nil {
		f.hand(c, b, f.memory)
	} else {
		c.WriteMsgUnix(b, unix.UnixRights(int(f.memory.Fd())), nil)
	}
	cancels := make(map[uint64]context.CancelFunc)
	for {
		q, err := conn.Read()
		switch {
		case err != nil:
			for _, cancel := range cancels {
				cancel()
			}
			return
		case q.Cancel != nil:
			cancels[q.Cancel.ID]()
		case q.Call != nil:
			ctx, cancel := context.WithCancel(ctx)
			cancels[q.Call.ID] = cancel
			go f.answer(ctx, conn, q.Call)
		}
	}
}

func (f *fakeEngine) answer(ctx context.Context, conn *api.Conn, q *api.Call) {
	a, err := f.call(ctx, q)
	if err != nil {
		a = &api.Answer{Code: api.Invalid, Error: err.Error()}
		if r := (*api.Refusal)(nil); errors.As(err, &r) {
			a.Code = r.Code
		}
	}
	reply := *a // a func may answer several calls with one
	reply.ID = q.ID
	conn.Write(api.Frame{Answer: &reply})
}

func (f *fakeEngine) call(ctx context.Context, q *api.Call) (*api.Answer, error) {
	none := &api.Answer{}
	switch q.Op {
	case api.Reserve:
		if f.reserve != nil {
			return f.reserve(q)
		}
		return &api.Answer{Blocks: []uint32{3, 1, 2}}, nil
	case api.List, api.Freeze:
		return f.table(ctx, q)
	case api.Schedule:
		if a := f.schedule.Load(); a != nil {
			return a, nil
		}
	case api.Thaw:
		return none, f.thaw(q)
	case api.Pin:
		return f.pin(q)
	case api.Commit:
		return none, f.commit(q)
	case api.Release, api.Fill:
		return none, nil
	}
	return nil, api.Refuse(api.Unsupported, "no such call")
}

func (f *fakeEngine) count(n int) {
	f.mu.Lock()
	f.sessions += n
	f.mu.Unlock()
}

// appendInvalid encodes a frame without validating it.
func appendInvalid(f api.Frame) []byte {
	body := testkit.Must(json.Marshal(f))
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}
