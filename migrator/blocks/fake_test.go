package blocks

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/engine/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeEngine is an engine that answers with its funcs. If a func is missing, it gives a valid
// default answer.
type fakeEngine struct {
	api.UnimplementedBlocksServer
	dir  string
	stop func()

	describe func() *api.Description
	session  func() string
	reserve  func(*api.ReserveRequest) (*api.ReserveReply, error)
	table    func(context.Context, *api.TableRequest) (*api.TableReply, error)
	thaw     func(*api.LegRequest) error
	pin      func(*api.PinPrefixRequest) (*api.PinPrefixReply, error)
	commit   func(*api.CommitPrefixRequest) error
	hand     func(*net.UnixConn, *os.File)
	schedule atomic.Pointer[api.ScheduleReply] // nil: it has no such call

	memory *os.File

	mu       sync.Mutex
	sessions int
}

const poolBytes = 4096

func plainDescription() *api.Description {
	return &api.Description{
		Model: "m", BlockTokens: 4, Blocks: 16, PoolBytes: poolBytes, TokenBytes: 1000, Fingerprint: 7,
		Regions: []*api.Region{{Offset: 0, Stride: 256, Bytes: 128}, {Offset: 128, Stride: 256, Bytes: 128}},
	}
}

// privateDir returns a directory that only this user may enter.
func privateDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// start serves a fake in a directory until stop, or the end of the test.
func (f *fakeEngine) start(t testing.TB, dir string) {
	t.Helper()
	f.dir = dir
	var err error
	if f.memory, err = os.CreateTemp(t.TempDir(), "pool"); err != nil {
		t.Fatal(err)
	}
	if err := f.memory.Truncate(poolBytes); err != nil {
		t.Fatal(err)
	}
	listen := func(name string) *net.UnixListener {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	pool, server := listen(poolSocket), grpc.NewServer(grpc.WaitForHandlers(true))
	api.RegisterBlocksServer(server, f)
	calls := listen(blocksSocket)
	var all sync.WaitGroup
	all.Go(func() { server.Serve(calls) })
	all.Go(func() {
		for {
			c, err := pool.AcceptUnix()
			if err != nil {
				return
			}
			if f.hand != nil {
				f.hand(c, f.memory)
			} else {
				c.WriteMsgUnix([]byte{0}, unix.UnixRights(int(f.memory.Fd())), nil)
			}
			c.Close()
		}
	})
	f.stop = sync.OnceFunc(func() {
		pool.Close()
		server.Stop()
		all.Wait()
		f.memory.Close()
	})
	t.Cleanup(f.stop)
}

func (f *fakeEngine) Describe(context.Context, *api.DescribeRequest) (*api.Description, error) {
	if f.describe != nil {
		return f.describe(), nil
	}
	return plainDescription(), nil
}

func (f *fakeEngine) Session(_ *api.SessionRequest, s grpc.ServerStreamingServer[api.SessionReply]) error {
	name := "s"
	if f.session != nil {
		name = f.session()
	}
	f.count(1)
	defer f.count(-1)
	if err := s.Send(&api.SessionReply{Session: name}); err != nil {
		return err
	}
	<-s.Context().Done()
	return s.Context().Err()
}

func (f *fakeEngine) count(n int) {
	f.mu.Lock()
	f.sessions += n
	f.mu.Unlock()
}

func (f *fakeEngine) Reserve(_ context.Context, r *api.ReserveRequest) (*api.ReserveReply, error) {
	if f.reserve != nil {
		return f.reserve(r)
	}
	if r.Session != "s" {
		return nil, errors.New("another session")
	}
	return &api.ReserveReply{Blocks: []uint32{3, 1, 2}}, nil
}

func (f *fakeEngine) Table(ctx context.Context, r *api.TableRequest) (*api.TableReply, error) {
	return f.table(ctx, r)
}

func (f *fakeEngine) Freeze(ctx context.Context, r *api.TableRequest) (*api.TableReply, error) {
	return f.table(ctx, r)
}

func (f *fakeEngine) Schedule(ctx context.Context, r *api.ScheduleRequest) (*api.ScheduleReply, error) {
	if reply := f.schedule.Load(); reply != nil {
		return reply, nil
	}
	return f.UnimplementedBlocksServer.Schedule(ctx, r)
}

func (f *fakeEngine) Thaw(_ context.Context, r *api.LegRequest) (*api.LegReply, error) {
	return &api.LegReply{}, f.thaw(r)
}

func (f *fakeEngine) PinPrefix(_ context.Context, r *api.PinPrefixRequest) (*api.PinPrefixReply, error) {
	return f.pin(r)
}

func (f *fakeEngine) CommitPrefix(_ context.Context, r *api.CommitPrefixRequest) (*api.CommitPrefixReply, error) {
	return &api.CommitPrefixReply{}, f.commit(r)
}
