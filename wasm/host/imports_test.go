package host

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// importing returns a policy with these imports, which have the first function indices, and
// a bid-select function.
func importing(list []hosttest.Import, body ...[]byte) []byte {
	m := hosttest.Policy(selects(body...))
	m.Imports = list
	return m.Encode()
}

var (
	i32s  = func(n int) []byte { return bytes.Repeat([]byte{hosttest.TypeI32}, n) }
	fails = hosttest.Import{Module: abi.ImportModule, Name: abi.ImportFail, Params: i32s(3)}
	logs  = hosttest.Import{Module: abi.ImportModule, Name: abi.ImportLog, Params: i32s(3)}
)

func wasiImport(name string, params int) hosttest.Import {
	return hosttest.Import{Module: wasi, Name: name, Params: i32s(params), Results: i32s(1)}
}

// hello writes a text to memory, at address 256.
var hello = hosttest.Cat(hosttest.I32(256), hosttest.I64(0x21656d74656c), hosttest.Store64(0)) // "letme!"

func TestFailNamesTheReason(t *testing.T) {
	for _, c := range []struct {
		at, n int32
		want  string
	}{{256, 6, "letme!"}, {256, 0, ""}, {-1, 6, ""}, {65_536 - 3, 6, ""}, {256, -1, "letme!"}} {
		i := instance(t, load(t, Config{}, importing([]hosttest.Import{fails}, hello,
			hosttest.I32(1), hosttest.I32(c.at), hosttest.I32(c.n), hosttest.Call(0), hosttest.Result(5, 0))))
		_, err := i.Select(abi.Call{}, sixteen())
		f, ok := err.(*Fault)
		if !ok || f.Cause != Refused || strings.Trim(f.Text, "\x00") != c.want || len(f.Text) > LogBytes {
			t.Errorf("%d bytes at %d: %v, %+v", c.n, c.at, err, f)
		}
	}
}

// TestLogIsBounded checks that a guest that logs without end is stopped, and that few of its
// lines are written.
func TestLogIsBounded(t *testing.T) {
	var out bytes.Buffer
	i := instance(t, load(t, Config{Logger: slog.New(slog.NewTextHandler(&out, nil))}, importing([]hosttest.Import{logs}, hello,
		hosttest.Loop(hosttest.I32(4), hosttest.I32(256), hosttest.I32(6), hosttest.Call(0), hosttest.Br(0)), hosttest.Result(1, 0))))
	_, err := i.Select(abi.Call{}, sixteen())
	if CauseOf(err) != OutOfFuel {
		t.Error(err)
	}
	// The calls take at most two seconds, because HostTicks bound them.
	if n := strings.Count(out.String(), "letme!"); n < LogLines || n > 2*LogLines {
		t.Errorf("%d lines were logged", n)
	}
	var l logLimiter
	now := time.Unix(100, 0)
	n := 0
	for range 1000 {
		if l.allow(now) {
			n++
		}
	}
	if n != LogLines || !l.allow(now.Add(time.Second)) {
		t.Errorf("%d lines in a second", n)
	}
}

// TestLogLevels checks that a guest's levels become the host's, and that an unknown one is not lost.
func TestLogLevels(t *testing.T) {
	for level, want := range map[int32]string{0: "DEBUG", 1: "INFO", 2: "WARN", 3: "ERROR", 4: "ERROR", -1: "ERROR"} {
		var out bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		i := instance(t, load(t, Config{Logger: logger}, importing([]hosttest.Import{logs}, hello,
			hosttest.I32(level), hosttest.I32(256), hosttest.I32(6), hosttest.Call(0), hosttest.Result(1, 0))))
		if _, err := i.Select(abi.Call{}, sixteen()); err != nil || !strings.Contains(out.String(), "level="+want+" ") {
			t.Errorf("level %d: %v, %s", level, err, out.String())
		}
	}
}

// TestImportsCostFuel checks the exact fuel of the host's work for a guest.
func TestImportsCostFuel(t *testing.T) {
	random := wasiImport("random_get", 2)
	for _, c := range []struct {
		n    int32
		want int64
	}{{0, 1 + HostTicks}, {64, 1 + HostTicks + 1}, {1024, 1 + HostTicks + 16}} {
		i := instance(t, load(t, Config{}, importing([]hosttest.Import{random},
			hosttest.I32(256), hosttest.I32(c.n), hosttest.Call(0), hosttest.Drop, hosttest.Result(1, 0))))
		if _, err := i.Select(abi.Call{}, sixteen()); err != nil || i.Fuel() != c.want {
			t.Errorf("random_get of %d bytes: %v, %d ticks, want %d", c.n, err, i.Fuel(), c.want)
		}
	}
	// Also in the start section, before the instance exists.
	m := hosttest.Policy(hosttest.LeastLoad(), hosttest.Func{Body: hosttest.Loop(
		hosttest.I32(256), hosttest.I32(1024), hosttest.Call(0), hosttest.Drop, hosttest.Br(0))})
	m.Imports, m.ExtraSections = []hosttest.Import{random}, []byte{8, 1, 3}
	if _, err := load(t, Config{Start: Limit{Fuel: 100_000}}, m.Encode()).Instantiate(); CauseOf(err) != Trapped {
		t.Errorf("a start section that asks for numbers without end: %v", err)
	}
}

// TestStubs makes each WASI call with valid and invalid arguments. bid-select returns the
// result of the import as its value.
func TestStubs(t *testing.T) {
	call := func(imp hosttest.Import, before []byte, args ...int32) (uint32, *Instance) {
		t.Helper()
		code := before
		for k, a := range args {
			if imp.Params[k] == hosttest.TypeI64 {
				code = hosttest.Cat(code, hosttest.I64(int64(a)))
			} else {
				code = hosttest.Cat(code, hosttest.I32(a))
			}
		}
		i := instance(t, load(t, Config{}, importing([]hosttest.Import{imp}, code, hosttest.Call(0), hosttest.Op(0xad))))
		result, err := i.invoke(abi.Select, i.fns[abi.Select], 0)
		if err != nil {
			t.Fatalf("%s%v: %v", imp.Name, args, err)
		}
		return uint32(result), i
	}
	timed := wasiImport("clock_time_get", 3)
	timed.Params[1] = hosttest.TypeI64
	// One buffer of six bytes at 256; another that lies outside.
	vector := hosttest.Cat(hello, hosttest.I32(128), hosttest.I64(6<<32|256), hosttest.Store64(0), hosttest.I32(136), hosttest.I64(6<<32|65_534), hosttest.Store64(0))
	// A timer of 5 µs at 512, a reader behind it.
	timer := hosttest.Cat(hosttest.I32(512), hosttest.I64(0x1234), hosttest.Store64(0), hosttest.I32(512), hosttest.I32(1), hosttest.Store32(16),
		hosttest.I32(512), hosttest.I64(5000), hosttest.Store64(24), hosttest.I32(560), hosttest.I32(1), hosttest.Store32(8))
	for _, c := range []struct {
		imp    hosttest.Import
		before []byte
		args   []int32
		want   uint32
	}{
		{wasiImport("args_get", 2), nil, []int32{0, 0}, 0},
		{wasiImport("args_sizes_get", 2), nil, []int32{8, 16}, 0},
		{wasiImport("args_sizes_get", 2), nil, []int32{8, -2}, errnoFault},
		{wasiImport("environ_get", 2), nil, []int32{0, 0}, 0},
		{wasiImport("environ_sizes_get", 2), nil, []int32{-1, 0}, errnoFault},
		{timed, nil, []int32{1, 0, 64}, 0},
		{timed, nil, []int32{0, 0, 65_536 - 7}, errnoFault},
		{wasiImport("random_get", 2), nil, []int32{8, 16}, 0},
		{wasiImport("random_get", 2), nil, []int32{8, maxRandom + 1}, errnoInvalid},
		{wasiImport("random_get", 2), nil, []int32{8, -1}, errnoInvalid},
		{wasiImport("random_get", 2), nil, []int32{65_530, 16}, errnoFault},
		{wasiImport("sched_yield", 0), nil, nil, 0},
		{wasiImport("fd_write", 4), vector, []int32{2, 128, 1, 64}, 0},
		{wasiImport("fd_write", 4), vector, []int32{2, 128, 2, 64}, errnoFault},
		{wasiImport("fd_write", 4), vector, []int32{3, 128, 1, 64}, errnoBadFile},
		{wasiImport("fd_write", 4), vector, []int32{1, 128, -1, 64}, errnoInvalid},
		{wasiImport("fd_write", 4), vector, []int32{1, 128, 1, -1}, errnoFault},
		{wasiImport("fd_write", 4), vector, []int32{1, -4, 1, 64}, errnoFault},
		{wasiImport("poll_oneoff", 4), timer, []int32{512, 640, 2, 64}, 0},
		{wasiImport("poll_oneoff", 4), timer, []int32{512, 640, 0, 64}, errnoInvalid},
		{wasiImport("poll_oneoff", 4), timer, []int32{512, 640, -1, 64}, errnoInvalid},
		{wasiImport("poll_oneoff", 4), timer, []int32{-48, 640, 1, 64}, errnoFault},
		{wasiImport("poll_oneoff", 4), timer, []int32{512, -8, 1, 64}, errnoFault},
	} {
		got, i := call(c.imp, c.before, c.args...)
		if got != c.want {
			t.Errorf("%s%v = %d, want %d", c.imp.Name, c.args, got, c.want)
		}
		if got != 0 {
			continue
		}
		switch c.imp.Name {
		case "fd_write":
			if string(i.stderr) != "letme!" {
				t.Errorf("the last words are %q", i.stderr)
			}
		case "clock_time_get":
			if now, _ := i.memory.ReadUint64Le(64); now != clockStep {
				t.Errorf("the clock is %d", now)
			}
		case "poll_oneoff":
			who, _ := i.memory.ReadUint64Le(640)
			reader, _ := i.memory.ReadUint32Le(672 + 8)
			if i.clock != 5000 || who != 0x1234 || reader != errnoBadFile|1<<16 {
				t.Errorf("after a timer: clock %d, %#x, %#x", i.clock, who, reader)
			}
		}
	}
	// An exit ends the call, and the instance.
	exit := hosttest.Import{Module: wasi, Name: "proc_exit", Params: i32s(1)}
	i := instance(t, load(t, Config{}, importing([]hosttest.Import{exit}, hosttest.I32(3), hosttest.Call(0), hosttest.Result(1, 0))))
	if _, err := i.Select(abi.Call{}, sixteen()); CauseOf(err) != Trapped || !strings.Contains(err.Error(), "exit(3)") || i.Dead() == nil {
		t.Errorf("exit: %v", err)
	}
}

// TestLastWordsAreTheLast checks that only the end of a long output is kept.
func TestLastWordsAreTheLast(t *testing.T) {
	flood := hosttest.Cat(hosttest.I32(128), hosttest.I64(60_000<<32|256), hosttest.Store64(0),
		hosttest.Loop(hosttest.I32(2), hosttest.I32(128), hosttest.I32(1), hosttest.I32(64), hosttest.Call(0), hosttest.Drop, hosttest.Br(0)))
	i := instance(t, load(t, Config{}, importing([]hosttest.Import{wasiImport("fd_write", 4)}, flood, hosttest.Result(1, 0))))
	_, err := i.Select(abi.Call{}, sixteen())
	if CauseOf(err) != OutOfFuel || len(i.stderr) != maxStderr {
		t.Errorf("%v, %d bytes", err, len(i.stderr))
	}
}
