package kvport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"golang.org/x/sys/unix"
)

// unavailable is what the log says of an engine that cannot be used.
const unavailable = "KV port unavailable"

// runClient runs a client. Its Logger is set.
func runClient(t testing.TB, cfg Config) (c *Client, log *testkit.Log, stop func()) {
	t.Helper()
	log = &testkit.Log{}
	cfg.Self, cfg.Logger = "r0", log.Logger()
	c = testkit.Must(New(cfg))
	return c, log, testkit.Run(t, c.Run)
}

// requireRefused runs a client of an engine that it must not use, and requires the reason in its
// log.
func requireRefused(t *testing.T, dir, reason string) {
	t.Helper()
	c, log, _ := runClient(t, Config{Dir: dir})
	testkit.WaitFor(t, "the log of the refusal", func() bool { return log.Count(unavailable) > 0 })
	if log.Count(reason) == 0 {
		t.Errorf("the log has no %q: %s", reason, log)
	}
	if _, ok := c.Memory(); ok {
		t.Error("there is a memory")
	}
}

// newConnected returns a client that is connected to a fake engine.
func newConnected(t testing.TB, f *fakeEngine) *Client {
	t.Helper()
	f.start(t, privateDir(t))
	c, _, _ := runClient(t, Config{Dir: f.dir})
	testkit.WaitFor(t, "the memory", func() bool { _, ok := c.Memory(); return ok })
	return c
}

// TestConfig names what is missing.
func TestConfig(t *testing.T) {
	_, err := New(Config{Self: "r0"})
	testkit.WantError(t, err, "Self and Dir are required")
	_, err = New(Config{Self: "r0", Dir: "d", Network: networkOf{}})
	testkit.WantError(t, err, "Paths is required with a Network")
}

// The engine starts, stops and starts again, each time as another one: what peers know of the former one is worth
// nothing. The session ends with the client.
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
	var former *transport.Memory
	var fingerprint uint64
	for round := range 3 {
		f := &fakeEngine{welcome: func(w *api.Welcome) { w.Fingerprint = fmt.Sprint("f", round) }}
		f.start(t, dir)
		testkit.WaitFor(t, "the memory", func() bool { _, ok := c.Memory(); return ok })
		d, _ := c.Description()
		m, _ := c.Memory()
		if d.BlockTokens != 4 || m.Blocks != 16 || d.TokenBytes != 1000 || d.Fingerprint == 0 || len(m.Bytes) != poolBytes {
			t.Errorf("%+v", d)
		}
		if d.Fingerprint == fingerprint || m == former || former != nil && former.Hold() {
			t.Errorf("round %d: the engine is described as its predecessor: %+v", round, d)
		}
		former, fingerprint = m, d.Fingerprint
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
	testkit.WaitFor(t, "the next session", func() bool { now := c.session(); return now != nil && now != before })
	testkit.WaitFor(t, "one session", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.sessions == 1 })
	if _, err := c.Reserve(t.Context(), "r", 12); err != nil {
		t.Error(err)
	}
}

// A welcome that the client cannot use rightly is refused, and the log names what is wrong. Requests migrate by
// re-prompting meanwhile.
func TestWrongWelcomes(t *testing.T) {
	for want, edit := range map[string]func(*api.Welcome){
		"version 1 of the protocol, but this side has 2": func(w *api.Welcome) { w.Version = 1 },
		"region 1 overlaps region 0":                     func(w *api.Welcome) { w.Regions[1].Offset = 127 },
		"rank 1 of 2 is missing":                         func(w *api.Welcome) { w.Regions[1].Rank = 0 },
		"0 ranks":                                        func(w *api.Welcome) { w.Ranks = 0 },
		"ends after the 4096 bytes":                      func(w *api.Welcome) { w.Blocks = 17 },
		"less than the 8192 of its description":          func(w *api.Welcome) { w.Handles[0].Bytes *= 2 },
		"welcome with 1 descriptors, want 2":             func(w *api.Welcome) { w.Handles = append(w.Handles, w.Handles[0]) },
		"shows no table":                                 func(w *api.Welcome) { w.Table = nil },
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			f := &fakeEngine{welcome: edit}
			f.start(t, privateDir(t))
			requireRefused(t, f.dir, want)
		})
	}
}

// The client also validates what comes with the welcome.
func TestWrongMemory(t *testing.T) {
	for name, hand := range map[string]func(*net.UnixConn, []byte, *os.File){
		"nothing":       func(c *net.UnixConn, _ []byte, _ *os.File) { c.Close() },
		"no descriptor": func(c *net.UnixConn, b []byte, _ *os.File) { c.Write(b) },
		"two descriptors": func(c *net.UnixConn, b []byte, m *os.File) {
			c.WriteMsgUnix(b, unix.UnixRights(int(m.Fd()), int(m.Fd())), nil)
		},
		"a socket": func(c *net.UnixConn, b []byte, _ *os.File) {
			self, err := c.File()
			if err == nil {
				c.WriteMsgUnix(b, unix.UnixRights(int(self.Fd())), nil)
				self.Close()
			}
		},
		"a long frame": func(c *net.UnixConn, b []byte, m *os.File) {
			b[0] = 0xff
			c.WriteMsgUnix(b, unix.UnixRights(int(m.Fd())), nil)
		},
		"another frame": func(c *net.UnixConn, _ []byte, m *os.File) {
			c.WriteMsgUnix(appendInvalid(api.Frame{Answer: &api.Answer{}}), unix.UnixRights(int(m.Fd())), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fakeEngine{hand: hand}
			f.start(t, privateDir(t))
			requireRefused(t, f.dir, unavailable)
		})
	}
}

// The memory of several handles is one Memory, in which each region is that of its handle.
func TestSeveralHandles(t *testing.T) {
	second, err := os.CreateTemp(t.TempDir(), "pool")
	testkit.NoError(t, err)
	t.Cleanup(func() { second.Close() }) // after the engine has stopped
	testkit.NoError(t, second.Truncate(5000))
	f := &fakeEngine{welcome: func(w *api.Welcome) {
		w.Handles = append(w.Handles, api.Handle{Kind: api.Memfd, Bytes: 5000})
		w.Regions[1] = api.Region{Handle: 1, Rank: 1, Offset: 8, Stride: 300, Bytes: 128}
	}, hand: func(c *net.UnixConn, b []byte, m *os.File) {
		c.WriteMsgUnix(b, unix.UnixRights(int(m.Fd()), int(second.Fd())), nil)
	}}
	c := newConnected(t, f)
	m, _ := c.Memory()
	for r, file := range []*os.File{f.memory, second} {
		for i := range m.RegionBytes(15, r) {
			m.RegionBytes(15, r)[i] = byte(40 + r)
		}
		var b [1]byte
		at := []int64{15 * 256, 8 + 15*300}[r]
		if _, err := file.ReadAt(b[:], at+127); err != nil || b[0] != byte(40+r) {
			t.Errorf("the engine reads %d of region %d, %v", b[0], r, err)
		}
	}
	if m.File != nil {
		t.Error("a memory of two files has a file")
	}
}

// TestDeviceMemory checks that Config.Device receives the data that the engine has sent.
func TestDeviceMemory(t *testing.T) {
	device := func(handle string, descriptor bool) func(*api.Welcome) {
		return func(w *api.Welcome) {
			w.Handles[0] = api.Handle{Kind: api.CUDA, Bytes: poolBytes, CUDA: []byte(handle), Descriptor: descriptor}
		}
	}
	for name, x := range map[string]struct {
		welcome func(*api.Welcome)
		files   int
		taken   string // passed to Device; "" if Device is not called
	}{
		"with a descriptor": {device("handle", true), 1, "handle true"},
		"without one":       {device("handle", false), 0, "handle false"},
		"two descriptors":   {device("handle", true), 2, ""},
		"a missing one":     {device("handle", true), 0, ""},
		"no handle":         {device("", true), 1, ""},
		"two handles":       {func(w *api.Welcome) { device("handle", true)(w); w.Handles = append(w.Handles, w.Handles[0]) }, 2, ""},
		"two kinds": {func(w *api.Welcome) {
			device("handle", true)(w)
			w.Handles = append(plainWelcome().Handles, w.Handles[0])
		}, 2, ""},
		"refused": {device("no", true), 1, "no true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fakeEngine{welcome: x.welcome, hand: func(c *net.UnixConn, b []byte, m *os.File) {
				var fds []int
				for range x.files {
					fds = append(fds, int(m.Fd()))
				}
				c.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
			}}
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
		f := &fakeEngine{welcome: device("handle", true)}
		f.start(t, privateDir(t))
		requireRefused(t, f.dir, "has no device configured")
	})
}

// An engine that accepts and does not answer does not delay the end of Run.
func TestSilentEngine(t *testing.T) {
	dir := privateDir(t)
	l := testkit.Must(net.Listen("unix", filepath.Join(dir, api.Socket)))
	defer l.Close()
	_, _, stop := runClient(t, Config{Dir: dir})
	conn := testkit.Must(l.Accept())
	defer conn.Close()
	stop()
}

func TestReservations(t *testing.T) {
	var reply *api.Answer
	var fails error
	f := &fakeEngine{reserve: func(*api.Call) (*api.Answer, error) { return reply, fails }}
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
		{err: api.Refuse(api.Full, ""), want: ErrFull},
		{err: api.Refuse(api.NotFound, "gone"), want: ErrNotFound},
		{err: api.Refuse(api.Unavailable, ""), want: ErrUnavailable},
		{err: api.Refuse(api.InUse, "")},
	} {
		reply, fails = &api.Answer{Blocks: x.blocks}, x.err
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
	var reply *api.Answer
	f := &fakeEngine{table: func(context.Context, *api.Call) (*api.Answer, error) { return reply, nil }}
	c := newConnected(t, f)
	good := func() *api.Answer {
		return &api.Answer{Generation: 2, Computed: 9, Length: 10, IDs: []uint32{1, 2, 3, 4, 5}, FirstBlock: 1, Blocks: []uint32{4, 15}, Cached: 3, Prompt: 6}
	}
	reply = good()
	if got, err := c.Table(t.Context(), "l", 5); err != nil || got.Generation != 2 || got.Computed != 9 || got.Length != 10 || len(got.IDs) != 5 || len(got.Blocks) != 2 || got.Cached != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	reply = &api.Answer{Computed: 4, Length: 5, FirstBlock: 1, Prompt: 1}
	if got, err := c.Table(t.Context(), "l", 5); err != nil || len(got.Blocks) != 0 {
		t.Errorf("nothing new: %+v, %v", got, err)
	}
	for name, edit := range map[string]func(*api.Answer){
		"fewer ids":     func(r *api.Answer) { r.IDs = r.IDs[1:] },
		"more computed": func(r *api.Answer) { r.Computed = 11 },
		"more cached":   func(r *api.Answer) { r.Cached = 7 },
		"more prompt":   func(r *api.Answer) { r.Prompt = 11 },
		"no blocks":     func(r *api.Answer) { r.Blocks = nil },
		"more blocks":   func(r *api.Answer) { r.Blocks = append(r.Blocks, 1) },
		"a far block":   func(r *api.Answer) { r.Blocks[0] = 16 },
		"another start": func(r *api.Answer) { r.FirstBlock = 0 },
		"endless":       func(r *api.Answer) { r.Length, r.Computed = 1<<64-1, 1<<64-1 },
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
	var f *fakeEngine
	for _, x := range []struct {
		name  string
		table func(context.Context, *api.Call) (*api.Answer, error)
		want  error
		thaws int
	}{
		{"late", func(ctx context.Context, _ *api.Call) (*api.Answer, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, context.DeadlineExceeded, 1},
		{"nonsense", func(context.Context, *api.Call) (*api.Answer, error) {
			return &api.Answer{Length: 9}, nil
		}, nil, 1},
		{"unknown", func(context.Context, *api.Call) (*api.Answer, error) {
			return nil, api.Refuse(api.NotFound, "gone")
		}, ErrNotFound, 0},
		{"waiting", func(context.Context, *api.Call) (*api.Answer, error) {
			return nil, api.Refuse(api.NotComputed, "waiting")
		}, ErrNotComputed, 0},
		{"engine gone", func(context.Context, *api.Call) (*api.Answer, error) {
			f.stop()
			return nil, errors.New("the connection has ended")
		}, ErrUnavailable, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			thaws := make(chan string, 9)
			f = &fakeEngine{table: x.table, thaw: func(r *api.Call) error { thaws <- r.Leg; return nil }}
			c := newConnected(t, f)
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

// FuzzTable sends arbitrary tables: each is rejected, or every position listed as computed has its
// block, within the pool.
func FuzzTable(f *testing.F) {
	f.Add(5, uint64(9), uint64(10), 5, uint64(1), 2, uint32(15), uint64(3), uint64(6))
	f.Fuzz(func(t *testing.T, from int, computed, length uint64, ids int, first uint64, blocks int, block uint32, cached, prompt uint64) {
		if from < 0 || ids < 0 || ids > 1000 || blocks < 0 || blocks > 1000 {
			return
		}
		l := &session{table: &Description{BlockTokens: 4}, memory: &transport.Memory{Layout: transport.Layout{Blocks: 16}}}
		r, err := l.decodeTable(&api.Answer{Computed: computed, Length: length, IDs: make([]uint32, ids), FirstBlock: first, Blocks: slices.Repeat([]uint32{block}, blocks), Cached: cached, Prompt: prompt}, from)
		if err != nil {
			return
		}
		if r.Computed > r.Length || from+len(r.IDs) != r.Length || (from/4+len(r.Blocks))*4 < r.Computed || len(r.Blocks) > 0 && block >= 16 {
			t.Errorf("from %d: %+v", from, r)
		}
	})
}

// The error of a call that the engine does not have says that.
func TestNoSuchCall(t *testing.T) {
	c := newConnected(t, new(fakeEngine))
	err := c.Drop(t.Context(), "l")
	testkit.WantError(t, err, "engine blocks: drop l: no such call")
	if errors.Is(err, ErrNoPrefixes) {
		t.Error("it says that the engine has no prefix cache")
	}
}

// TestNextToken checks that an engine without a schedule counts as quiet, and that no report
// overflows.
func TestNextToken(t *testing.T) {
	f := new(fakeEngine)
	c := newConnected(t, f)
	if next, err := c.NextToken(t.Context()); next != 0 || err != nil {
		t.Errorf("without a schedule: %v, %v", next, err)
	}
	f.schedule.Store(&api.Answer{NextTokenUS: 1500})
	if next, err := c.NextToken(t.Context()); next != 1500*time.Microsecond || err != nil {
		t.Errorf("%v, %v", next, err)
	}
	f.schedule.Store(&api.Answer{NextTokenUS: 1 << 63})
	if next, err := c.NextToken(t.Context()); next != time.Hour || err != nil {
		t.Errorf("%v, %v", next, err)
	}
}
