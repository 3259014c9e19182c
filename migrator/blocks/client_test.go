package blocks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// unavailable is what the log says of an engine that cannot be used.
const unavailable = "block table unavailable"

// runClient runs a client. Its Logger is set.
func runClient(t testing.TB, cfg Config) (c *Client, log *testkit.Log, stop func()) {
	t.Helper()
	log = &testkit.Log{}
	cfg.Logger = log.Logger()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return c, log, stop
}

// runRefused runs a client of an engine that it must not use, and returns its log.
func runRefused(t *testing.T, f *fakeEngine) *testkit.Log {
	t.Helper()
	f.start(t, privateDir(t))
	c, log, _ := runClient(t, Config{Dir: f.dir})
	testkit.WaitFor(t, "the log of the refusal", func() bool { return log.Count(unavailable) > 0 })
	if _, ok := c.Memory(); ok {
		t.Error("there is a memory")
	}
	return log
}

// newConnected returns a client that is connected to a fake engine.
func newConnected(t testing.TB, f *fakeEngine) *Client {
	t.Helper()
	f.start(t, privateDir(t))
	c, _, _ := runClient(t, Config{Dir: f.dir})
	testkit.WaitFor(t, "the memory", func() bool { _, ok := c.Memory(); return ok })
	return c
}

func TestNoDirectory(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("a client of nowhere was made")
	}
}

// The engine starts, stops and starts again; the session ends with the client.
func TestEngineComesAndGoes(t *testing.T) {
	dir := privateDir(t)
	c, log, stop := runClient(t, Config{Dir: dir})
	testkit.WaitFor(t, "the log of the missing engine", func() bool { return log.Count(unavailable) > 0 })
	if _, ok := c.Description(); ok {
		t.Error("a description of nothing")
	}
	if err := c.Release(t.Context(), "r"); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
	for round := range 3 {
		f := &fakeEngine{}
		f.start(t, dir)
		testkit.WaitFor(t, "the memory", func() bool { _, ok := c.Memory(); return ok })
		d, _ := c.Description()
		m, _ := c.Memory()
		if d.Model != "m" || d.BlockTokens != 4 || d.Layout.Blocks != 16 || d.TokenBytes != 1000 || d.Fingerprint != 7 || d.PoolBytes != poolBytes || len(m.Bytes) != poolBytes {
			t.Errorf("%+v", d)
		}
		if got := d.BlocksFor(9); got != 3 {
			t.Errorf("%d blocks for 9 tokens", got)
		}
		// Both processes see the same bytes.
		m.RegionBytes(15, 1)[127] = 42
		var b [1]byte
		if _, err := f.memory.ReadAt(b[:], poolBytes-1); err != nil || b[0] != 42 {
			t.Errorf("the engine reads %d, %v", b[0], err)
		}
		if got, err := c.Reserve(t.Context(), "r", 12); err != nil || !slices.Equal(got, []uint32{3, 1, 2}) {
			t.Error(got, err)
		}
		held := round == 1 && m.Hold()
		if round == 2 {
			stop()
			testkit.WaitFor(t, "the end of the session", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.sessions == 0 })
			if _, ok := c.Memory(); ok {
				t.Error("there is a memory after Run")
			}
			break
		}
		f.stop()
		testkit.WaitFor(t, "the loss of the memory", func() bool { _, ok := c.Memory(); return !ok })
		if _, err := c.Reserve(t.Context(), "r", 12); !errors.Is(err, ErrUnavailable) {
			t.Error(err)
		}
		if held {
			m.RegionBytes(15, 1)[0]++ // still mapped
			m.Release()
		}
	}
	if n := log.Count(unavailable); n != 3 {
		t.Errorf("said %d times that the engine is unavailable, in 3 outages:\n%s", n, log)
	}
}

// An abandoned session ends once its memory is no longer in use, and another session with the same
// engine begins.
func TestAbandon(t *testing.T) {
	f := &fakeEngine{}
	c := newConnected(t, f)
	c.mu.Lock()
	before := c.current
	c.mu.Unlock()
	m, _ := c.Memory()
	m.Hold()
	c.AbandonSession(errors.New("it releases nothing"))
	c.AbandonSession(errors.New("it still does not"))
	testkit.WaitFor(t, "the loss of the memory", func() bool { _, ok := c.Memory(); return !ok })
	if _, err := c.Reserve(t.Context(), "r", 12); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
	c.AbandonSession(errors.New("it is away already"))
	f.mu.Lock()
	if f.sessions != 1 {
		t.Errorf("%d sessions while the memory is held", f.sessions)
	}
	f.mu.Unlock()
	m.RegionBytes(15, 1)[0]++
	m.Release()
	testkit.WaitFor(t, "the next session", func() bool { now := c.currentSession(); return now != nil && now != before })
	testkit.WaitFor(t, "one session", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.sessions == 1 })
	if _, err := c.Reserve(t.Context(), "r", 12); err != nil {
		t.Error(err)
	}
}

// The client validates the engine's description of its memory.
func TestWrongDescriptions(t *testing.T) {
	for name, edit := range map[string]func(*api.Description){
		"no blocks":       func(d *api.Description) { d.Blocks = 0 },
		"no block tokens": func(d *api.Description) { d.BlockTokens = 0 },
		"wide blocks":     func(d *api.Description) { d.BlockTokens = 1 << 30 },
		"no regions":      func(d *api.Description) { d.Regions = nil },
		"many regions":    func(d *api.Description) { d.Regions = slices.Repeat(d.Regions, 1000) },
		"a nil region":    func(d *api.Description) { d.Regions[1] = nil },
		"a long region":   func(d *api.Description) { d.Regions[1].Bytes = 129; d.Regions[1].Offset = 3968 },
		"an endless one":  func(d *api.Description) { d.Regions[1].Bytes = 1 << 63 },
		"a far one":       func(d *api.Description) { d.Regions[1].Offset = 1<<64 - 1 },
		"more blocks":     func(d *api.Description) { d.Blocks = 17 },
		"endless bytes":   func(d *api.Description) { d.PoolBytes = 1 << 63 },
		"heavy tokens":    func(d *api.Description) { d.TokenBytes = 1 << 63 },
		// This description is valid, but the memory is smaller.
		"a larger pool": func(d *api.Description) { d.PoolBytes *= 2; d.Blocks *= 2 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fakeEngine{describe: func() *api.Description { d := plainDescription(); edit(d); return d }}
			if log := runRefused(t, f); log.Count("descri") == 0 {
				t.Errorf("log: %s", log)
			}
		})
	}
}

// The client also validates what it receives from the pool's socket.
func TestWrongMemory(t *testing.T) {
	for name, f := range map[string]*fakeEngine{
		"nothing":       {hand: func(*net.UnixConn, *os.File) {}},
		"no descriptor": {hand: func(c *net.UnixConn, _ *os.File) { c.Write([]byte{0}) }},
		"two descriptors": {hand: func(c *net.UnixConn, m *os.File) {
			c.WriteMsgUnix([]byte{0}, unix.UnixRights(int(m.Fd()), int(m.Fd())), nil)
		}},
		"a socket": {hand: func(c *net.UnixConn, _ *os.File) {
			self, err := c.File()
			if err == nil {
				c.WriteMsgUnix([]byte{0}, unix.UnixRights(int(self.Fd())), nil)
				self.Close()
			}
		}},
		"no session name":   {session: func() string { return "" }},
		"a long name":       {session: func() string { return strings.Repeat("s", maxName+1) }},
		"an oversized name": {session: func() string { return strings.Repeat("s", maxMessage+1) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runRefused(t, f)
		})
	}
}

// TestDeviceMemory checks that Config.Device receives the data that the engine has sent.
func TestDeviceMemory(t *testing.T) {
	send := func(message string, files int) func(*net.UnixConn, *os.File) {
		return func(c *net.UnixConn, m *os.File) {
			var fds []int
			for range files {
				fds = append(fds, int(m.Fd()))
			}
			c.WriteMsgUnix([]byte(message), unix.UnixRights(fds...), nil)
		}
	}
	for name, x := range map[string]struct {
		hand  func(*net.UnixConn, *os.File)
		taken string // passed to Device; "" if Device is not called
	}{
		"with a descriptor":    {send("ghandle", 1), "handle true"},
		"without one":          {send("ghandle", 0), "handle false"},
		"two descriptors":      {send("ghandle", 2), ""},
		"another kind":         {send("xhandle", 1), ""},
		"a handle without end": {send("g"+strings.Repeat("h", maxHandle+1), 0), strings.Repeat("h", maxHandle) + " false"},
		"no handle":            {send("g", 0), ""},
		"refused":              {send("gno", 1), "no true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fakeEngine{hand: x.hand}
			f.start(t, privateDir(t))
			var mu sync.Mutex
			got, closed := "", 0
			c, log, stop := runClient(t, Config{Dir: f.dir, Device: func(handle []byte, f *os.File, l transport.Layout) (*transport.Memory, error) {
				mu.Lock()
				defer mu.Unlock()
				got = fmt.Sprint(string(handle), " ", f != nil)
				if f != nil {
					f.Close()
				}
				if string(handle) == "no" {
					return nil, errors.New("no such GPU")
				}
				return &transport.Memory{Layout: l, Unmap: func() { closed++ }}, nil
			}})
			testkit.WaitFor(t, "the memory or its refusal", func() bool { _, ok := c.Memory(); return ok || log.Count(unavailable) > 0 })
			if m, ok := c.Memory(); ok != (x.taken != "" && name != "refused") || ok && m.Blocks != 16 {
				t.Errorf("memory: %v; log: %s", ok, log)
			}
			stop()
			if got != x.taken || (closed == 1) != (x.taken != "" && name != "refused") {
				t.Errorf("Device is handed %q, want %q; closed %d times", got, x.taken, closed)
			}
		})
	}
	t.Run("no device configured", func(t *testing.T) {
		if log := runRefused(t, &fakeEngine{hand: send("ghandle", 1)}); log.Count("has no device configured") == 0 {
			t.Errorf("log: %s", log)
		}
	})
}

// An engine that accepts and does not answer does not delay the end of Run.
func TestSilentEngine(t *testing.T) {
	dir := privateDir(t)
	l, err := net.Listen("unix", filepath.Join(dir, blocksSocket))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, _, stop := runClient(t, Config{Dir: dir})
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stop()
}

// An engine that never sends its memory does not delay the end of Run, either.
func TestSilentPool(t *testing.T) {
	waits, end := make(chan struct{}), make(chan struct{})
	f := &fakeEngine{hand: func(*net.UnixConn, *os.File) { close(waits); <-end }}
	f.start(t, privateDir(t))
	defer f.stop()
	defer close(end)
	_, _, stop := runClient(t, Config{Dir: f.dir})
	<-waits
	stop()
}

func TestReservations(t *testing.T) {
	var reply *api.ReserveReply
	var fails error
	f := &fakeEngine{reserve: func(*api.ReserveRequest) (*api.ReserveReply, error) { return reply, fails }}
	c := newConnected(t, f)
	for _, x := range []struct {
		blocks []uint32
		err    error
		want   error // nil: any error
		ok     bool
	}{
		{blocks: []uint32{1, 2}, ok: true},
		{blocks: []uint32{1, 2, 3, 15}, ok: true},
		{blocks: []uint32{1}},
		{blocks: []uint32{1, 16}},
		{err: status.Error(codes.ResourceExhausted, ""), want: ErrFull},
		{err: status.Error(codes.NotFound, ""), want: ErrNotFound},
		{err: status.Error(codes.Unavailable, ""), want: ErrUnavailable},
		{err: status.Error(codes.AlreadyExists, "")},
	} {
		reply, fails = &api.ReserveReply{Blocks: x.blocks}, x.err
		got, err := c.Reserve(t.Context(), "r", 8)
		if x.ok != (err == nil) || x.ok && !slices.Equal(got, x.blocks) || !errors.Is(err, x.want) && x.want != nil {
			t.Errorf("%+v: %v, %v", x, got, err)
		}
	}
	for _, err := range []error{
		func() error { _, err := c.Reserve(t.Context(), "r", -1); return err }(),
		c.MarkFilled(t.Context(), "r", -1, nil, 0),
		c.MarkFilled(t.Context(), "r", 0, nil, -1),
		func() error { _, err := c.Table(t.Context(), "l", -1); return err }(),
	} {
		if err == nil {
			t.Error("a negative number was accepted")
		}
	}
}

// The client rejects a table that contradicts itself, because its numbers become addresses.
func TestTables(t *testing.T) {
	var reply *api.TableReply
	f := &fakeEngine{table: func(context.Context, *api.TableRequest) (*api.TableReply, error) { return reply, nil }}
	c := newConnected(t, f)
	good := func() *api.TableReply {
		return &api.TableReply{Generation: 2, Computed: 9, Length: 10, Ids: []uint32{1, 2, 3, 4, 5}, FirstBlock: 1, Blocks: []uint32{4, 15}, Cached: 3, Prompt: 6}
	}
	reply = good()
	if got, err := c.Table(t.Context(), "l", 5); err != nil || got.Generation != 2 || got.Computed != 9 || got.Length != 10 || len(got.IDs) != 5 || got.FirstBlock != 1 || len(got.Blocks) != 2 || got.Cached != 3 || got.Prompt != 6 {
		t.Errorf("%+v, %v", got, err)
	}
	reply = &api.TableReply{Computed: 4, Length: 5, FirstBlock: 1, Prompt: 1}
	if got, err := c.Table(t.Context(), "l", 5); err != nil || len(got.Blocks) != 0 {
		t.Errorf("nothing new: %+v, %v", got, err)
	}
	for name, edit := range map[string]func(*api.TableReply){
		"fewer ids":     func(r *api.TableReply) { r.Ids = r.Ids[1:] },
		"more computed": func(r *api.TableReply) { r.Computed = 11 },
		"more cached":   func(r *api.TableReply) { r.Cached = 7 },
		"more prompt":   func(r *api.TableReply) { r.Prompt = 11 },
		"no blocks":     func(r *api.TableReply) { r.Blocks = nil },
		"more blocks":   func(r *api.TableReply) { r.Blocks = append(r.Blocks, 1) },
		"a far block":   func(r *api.TableReply) { r.Blocks[0] = 16 },
		"another start": func(r *api.TableReply) { r.FirstBlock = 0 },
		"endless":       func(r *api.TableReply) { r.Length, r.Computed = 1<<64-1, 1<<64-1 },
	} {
		reply = good()
		edit(reply)
		if got, err := c.Table(t.Context(), "l", 5); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A freeze that fails in any way leaves nothing frozen.
func TestFailedFreezeIsUndone(t *testing.T) {
	for _, x := range []struct {
		name  string
		table func(context.Context, *api.TableRequest) (*api.TableReply, error)
		want  error
		thaws int
	}{
		{"late", func(ctx context.Context, _ *api.TableRequest) (*api.TableReply, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, context.DeadlineExceeded, 1},
		{"nonsense", func(context.Context, *api.TableRequest) (*api.TableReply, error) {
			return &api.TableReply{Length: 9}, nil
		}, nil, 1},
		{"unknown", func(context.Context, *api.TableRequest) (*api.TableReply, error) {
			return nil, status.Error(codes.NotFound, "")
		}, ErrNotFound, 0},
		{"waiting", func(context.Context, *api.TableRequest) (*api.TableReply, error) {
			return nil, status.Error(codes.FailedPrecondition, "")
		}, ErrNotComputed, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			thaws := make(chan string, 9)
			c := newConnected(t, &fakeEngine{table: x.table, thaw: func(r *api.LegRequest) error { thaws <- r.Leg; return nil }})
			ctx := t.Context()
			if x.want == context.DeadlineExceeded {
				late, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
				defer cancel()
				ctx = late
			}
			if _, err := c.Freeze(ctx, "leg", 0); err == nil || x.want != nil && !errors.Is(err, x.want) {
				t.Error(err)
			}
			// The client may have stopped waiting for an answer that is in transit.
			testkit.WaitFor(t, "the thaws", func() bool { return len(thaws) >= x.thaws })
			if len(thaws) != x.thaws || x.thaws > 0 && <-thaws != "leg" {
				t.Errorf("thawed %d times, want %d", len(thaws), x.thaws)
			}
		})
	}
}

// FuzzDescribe checks arbitrary descriptions: each is rejected, or every part of every block lies
// within the memory.
func FuzzDescribe(f *testing.F) {
	f.Add(uint32(4), uint32(16), uint64(4096), uint64(0), uint64(256), uint64(128), uint64(128), uint64(256), uint64(128))
	f.Add(uint32(1), uint32(1<<31), uint64(1)<<44, uint64(1)<<44, uint64(1)<<63, uint64(1), uint64(0), uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, tokens, blocks uint32, pool, o1, s1, b1, o2, s2, b2 uint64) {
		d, err := decodeDescription(&api.Description{BlockTokens: tokens, Blocks: blocks, PoolBytes: pool, Regions: []*api.Region{
			{Offset: o1, Stride: s1, Bytes: b1}, {Offset: o2, Stride: s2, Bytes: b2},
		}})
		if err != nil {
			return
		}
		for _, r := range d.Layout.Regions {
			if end := r.Offset + int64(d.Layout.Blocks-1)*r.Stride + r.Bytes; end > d.PoolBytes || end < 0 || r.Offset < 0 {
				t.Errorf("%+v leaves a pool of %d bytes", r, d.PoolBytes)
			}
		}
	})
}

// FuzzTable sends arbitrary tables: each is rejected, or every position listed as computed has its
// block, within the pool.
func FuzzTable(f *testing.F) {
	f.Add(5, uint64(9), uint64(10), 5, uint32(1), 2, uint32(15), uint64(3), uint64(6))
	f.Fuzz(func(t *testing.T, from int, computed, length uint64, ids int, first uint32, blocks int, block uint32, cached, prompt uint64) {
		if from < 0 || ids < 0 || ids > 1000 || blocks < 0 || blocks > 1000 {
			return
		}
		l := &session{description: Description{BlockTokens: 4}}
		l.description.Layout.Blocks = 16
		r, err := l.decodeTable(&api.TableReply{Computed: computed, Length: length, Ids: make([]uint32, ids), FirstBlock: first, Blocks: slices.Repeat([]uint32{block}, blocks), Cached: cached, Prompt: prompt}, from)
		if err != nil {
			return
		}
		if r.Computed > r.Length || from+len(r.IDs) != r.Length || (r.FirstBlock+len(r.Blocks))*4 < r.Computed || len(r.Blocks) > 0 && block >= 16 {
			t.Errorf("from %d: %+v", from, r)
		}
	})
}

// TestNextToken checks that an engine without a schedule counts as quiet, and that no report
// overflows.
func TestNextToken(t *testing.T) {
	f := new(fakeEngine)
	c := newConnected(t, f)
	if next, err := c.NextToken(t.Context()); next != 0 || err != nil {
		t.Errorf("without a schedule: %v, %v", next, err)
	}
	f.schedule.Store(&api.ScheduleReply{NextTokenUs: 1500})
	if next, err := c.NextToken(t.Context()); next != 1500*time.Microsecond || err != nil {
		t.Errorf("%v, %v", next, err)
	}
	f.schedule.Store(&api.ScheduleReply{NextTokenUs: 1 << 63})
	if next, err := c.NextToken(t.Context()); next != time.Hour || err != nil {
		t.Errorf("%v, %v", next, err)
	}
}
