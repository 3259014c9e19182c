package headroom

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// process is what a Monitor sees of its process.
type process struct {
	now  time.Time
	open int   // descriptors
	live int64 // bytes of live objects
	log  testkit.Log
}

// newMonitor returns a Monitor of a process that the test changes.
func newMonitor(l Limits) (*Monitor, *process) {
	p := &process{now: time.Unix(1000, 0)}
	m := New(l, p.log.Logger())
	m.now, m.open, m.live = func() time.Time { return p.now }, func() int { return p.open }, func() int64 { return p.live }
	return m, p
}

// TestDescriptors checks that a burst of requests is admitted up to the reserve and not beyond,
// also while its connections are not open yet, and so not counted.
func TestDescriptors(t *testing.T) {
	m, p := newMonitor(Limits{Descriptors: 1024})
	const usable = 1024 - 128 // the rest is reserved
	log := &p.log
	if !strings.Contains(log.String(), "file descriptor limit is low") || !strings.Contains(log.String(), "limit=1024 reserved=128") {
		t.Errorf("at the start: %s", log)
	}
	p.open = 800
	admit := func() (n int) {
		for m.Admit() == nil {
			n++
		}
		return n
	}
	if n := admit(); n != usable-800 {
		t.Errorf("%d requests are admitted, want %d", n, usable-800)
	}
	// None of them has its connection yet, and they still count.
	p.now = p.now.Add(window)
	if n := admit(); n != 0 {
		t.Errorf("%d more requests are admitted, want none", n)
	}
	// All of them have their connections, and half of the 800 others are closed.
	p.now, p.open = p.now.Add(2*window), usable-400
	if n := admit(); n != 400 {
		t.Errorf("%d requests are admitted, want 400", n)
	}
	if err := m.Err(); !errors.Is(err, ErrDescriptors) {
		t.Error(err)
	}
	testkit.NoError(t, testutil.CollectAndCompare(m, strings.NewReader(`
		# HELP cascade_headroom_refusals_total New requests and connections refused because the process had little of a resource left.
		# TYPE cascade_headroom_refusals_total counter
		cascade_headroom_refusals_total{resource="descriptors"} 3
		cascade_headroom_refusals_total{resource="memory"} 0
	`)))
	if refused, again := log.Count("new requests are refused"), log.Count("new requests are accepted again"); refused != 2 || again != 1 {
		t.Errorf("%d and %d lines:\n%s", refused, again, log)
	}
}

// TestProblems checks that a shortage is reported while requests are refused and for a moment
// afterwards, and that one of memory starts garbage collections: without them, the measured live
// heap does not shrink.
func TestProblems(t *testing.T) {
	m, p := newMonitor(Limits{Descriptors: 1024, Memory: 1 << 30})
	collections := 0
	m.collect = func() { collections++ }
	require := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, problem := range m.Problems() {
			got = append(got, problem.Kind)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	require("idle")
	p.open, p.now = 1000, p.now.Add(window)
	require("few descriptors", "descriptors")
	if m.Admit() == nil {
		t.Error("admitted")
	}
	p.open, p.now = 10, p.now.Add(window)
	require("a moment later", "descriptors")
	p.now = p.now.Add(shownFor)
	require("later")
	p.live, p.now = 1<<30, p.now.Add(window)
	require("little memory", "memory")
	p.now = p.now.Add(window)
	require("little memory still", "memory")
	if collections != 1 {
		t.Errorf("%d garbage collections, want 1", collections)
	}
	p.now = p.now.Add(collectInterval)
	require("a second later", "memory")
	if collections != 2 {
		t.Errorf("%d garbage collections a second later, want 2", collections)
	}
	var none *Monitor
	if none.Problems() != nil {
		t.Error("no monitor has a problem")
	}
}

// TestMemory checks that requests are refused while the live objects are near the limit.
func TestMemory(t *testing.T) {
	m, p := newMonitor(Limits{Memory: 1 << 30})
	testkit.NoError(t, m.Admit())
	p.live, p.now = 900<<20, p.now.Add(window)
	if err := m.Admit(); !errors.Is(err, ErrMemory) {
		t.Errorf("near the limit: %v", err)
	}
	p.live, p.now = 700<<20, p.now.Add(window)
	testkit.NoError(t, m.Admit())
	var none *Monitor
	testkit.NoError(t, none.Admit())
	testkit.NoError(t, none.Err())
}

// TestListener checks that connections may use the first half of the reserve, and are closed
// at once when they would use the second half.
func TestListener(t *testing.T) {
	m, p := newMonitor(Limits{Descriptors: 1024})
	inner := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	l := m.Listener(inner)
	defer l.Close()
	p.open = 1024 - 128
	accepted := make(chan net.Conn, 4)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn { return testkit.Must(net.Dial("tcp", inner.Addr().String())) }
	kept := dial()
	defer kept.Close()
	(<-accepted).Close()
	m.mu.Lock()
	p.open, p.now = 1024-64, p.now.Add(window)
	m.mu.Unlock()
	closed := dial()
	defer closed.Close()
	if _, err := closed.Read(make([]byte, 1)); err == nil {
		t.Error("a connection that uses the second half of the reserve stays open")
	}
	if len(accepted) != 0 {
		t.Error("a connection that uses the second half of the reserve reaches the server")
	}
	if got := (*Monitor)(nil).Listener(inner); got != inner {
		t.Error("without a Monitor the listener is another one")
	}
}

// TestOpenDescriptors counts what this process opens.
func TestOpenDescriptors(t *testing.T) {
	before := openDescriptors()
	if before == 0 {
		testkit.Skip(t, testkit.Unavailable{What: "this system does not list the open files of a process", Remedy: "run it on Linux"})
	}
	for range 10 {
		defer testkit.Must(os.Open(os.DevNull)).Close()
	}
	if n := openDescriptors() - before; n != 10 {
		t.Errorf("%d of 10 counted", n)
	}
	if l := Read(); l.Descriptors < before {
		t.Errorf("%+v", l)
	}
}

// TestContainerMemory checks that the smallest limit of a cgroup and its parents counts.
func TestContainerMemory(t *testing.T) {
	root := t.TempDir()
	for dir, limit := range map[string]string{"a/b": "max\n", "a": "1048576\n", "": "4194304\n", "c": "max\n"} {
		testkit.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
		testkit.NoError(t, os.WriteFile(filepath.Join(root, dir, "memory.max"), []byte(limit), 0o600))
	}
	for membership, want := range map[string]int64{
		"0::/a/b\n": 1 << 20, "1:cpu:/x\n0::/a\n": 1 << 20, "0::/c\n": 4 << 20, "0::/\n": 4 << 20, "0::/gone/deeper\n": 4 << 20, "": 0, "2:memory:/a\n": 0,
	} {
		if got := containerMemory(root, membership); got != want {
			t.Errorf("%q: %d, want %d", membership, got, want)
		}
	}
}
