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

	"github.com/cascadeinfer/cascade/policies/testkit"
)

// clocked returns a Monitor whose clock, descriptors and memory the test sets.
func clocked(l Limits) (m *Monitor, log *testkit.Log, now *time.Time, open *int, live *int64) {
	log, now, open, live = &testkit.Log{}, new(time.Time), new(int), new(int64)
	*now = time.Unix(1000, 0)
	m = New(l, log.Logger())
	m.now, m.open, m.live = func() time.Time { return *now }, func() int { return *open }, func() int64 { return *live }
	return m, log, now, open, live
}

// TestDescriptors: a burst between two counts is not admitted beyond the reserve, whether
// or not its connections are counted yet.
func TestDescriptors(t *testing.T) {
	m, log, now, open, _ := clocked(Limits{Descriptors: 1024}) // 128 are reserved
	if !strings.Contains(log.String(), "file descriptor limit is low") || !strings.Contains(log.String(), "limit=1024 reserved=128") {
		t.Errorf("at the start: %s", log)
	}
	*open = 800
	admit := func() (n int) {
		for m.Admit() == nil {
			n++
		}
		return n
	}
	if n := admit(); n != 96 {
		t.Errorf("%d of 96 admitted", n)
	}
	// None has its connection yet: they still count.
	*now = now.Add(window)
	if n := admit(); n != 0 {
		t.Errorf("%d more admitted", n)
	}
	// All have theirs, and half of the others are closed.
	*now, *open = now.Add(2*window), 496
	if n := admit(); n != 400 {
		t.Errorf("%d of 400 admitted", n)
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

// TestProblems: a shortage is a problem while something is refused, and for a moment afterwards; one
// of memory asks for a garbage collection, because without one the live heap stays what it was.
func TestProblems(t *testing.T) {
	m, _, now, open, live := clocked(Limits{Descriptors: 1024, Memory: 1 << 30})
	collections := 0
	m.collect = func() { collections++ }
	require := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, p := range m.Problems() {
			got = append(got, p.Kind)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	require("idle")
	*open, *now = 1000, now.Add(window)
	require("few descriptors", "descriptors")
	if m.Admit() == nil {
		t.Error("admitted")
	}
	*open, *now = 10, now.Add(window)
	require("a moment later", "descriptors")
	*now = now.Add(shownFor)
	require("later")
	*live, *now = 1<<30, now.Add(window)
	require("little memory", "memory")
	*now = now.Add(window)
	require("the same", "memory")
	if collections != 1 {
		t.Errorf("%d collections", collections)
	}
	*now = now.Add(collectInterval)
	require("a second later", "memory")
	if collections != 2 {
		t.Errorf("%d collections a second later", collections)
	}
	var none *Monitor
	if none.Problems() != nil {
		t.Error("no monitor has a problem")
	}
}

// TestMemory: live objects near the limit refuse requests.
func TestMemory(t *testing.T) {
	m, _, now, _, live := clocked(Limits{Memory: 1 << 30})
	testkit.NoError(t, m.Admit())
	*live, *now = 900<<20, now.Add(window)
	if err := m.Admit(); !errors.Is(err, ErrMemory) {
		t.Errorf("near the limit: %v", err)
	}
	*live, *now = 700<<20, now.Add(window)
	testkit.NoError(t, m.Admit())
	var none *Monitor
	testkit.NoError(t, none.Admit())
	testkit.NoError(t, none.Err())
}

// TestListener: connections are accepted into the first half of the reserve and closed
// in the second.
func TestListener(t *testing.T) {
	m, _, now, open, _ := clocked(Limits{Descriptors: 1024})
	inner := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	l := m.Listener(inner)
	defer l.Close()
	*open = 1024 - 128
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
	*open, *now = 1024-64, now.Add(window)
	m.mu.Unlock()
	closed := dial()
	defer closed.Close()
	if _, err := closed.Read(make([]byte, 1)); err == nil {
		t.Error("a connection into the second half stays open")
	}
	if len(accepted) != 0 {
		t.Error("it was accepted")
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

// TestContainerMemory: the smallest limit on the way up counts.
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
