package verbs

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// TestMain is also a source in another process, on the library of its argument.
func TestMain(m *testing.M) {
	transporttest.RunSource(func(path string) (transporttest.End, string, error) {
		lib, err := verbs.Open(path)
		if err != nil {
			return transporttest.End{}, "", err
		}
		m := transporttest.HeapMemory(layout(64, 4096))
		return transporttest.End{Transport: newTransportOn(&testing.T{}, lib, m), Memory: m}, "", nil
	})
	os.Exit(m.Run())
}

// real reports whether the tests run on the machine's own library and device: in the
// guest of "make rdma-check", or on a machine with an RDMA device.
func real() bool { return os.Getenv("CASCADE_TEST_VERBS") != "" }

// shared is the library of all tests, so that its open objects are known.
var shared struct {
	sync.Mutex
	lib *verbs.Library
}

// openLibrary returns the library that the tests run on: the fake, or with
// CASCADE_TEST_VERBS=1 the machine's own.
func openLibrary(t testing.TB) *verbs.Library {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.lib != nil {
		return shared.lib
	}
	path := ""
	if !real() {
		path = fake.Verbs(t)
	}
	l, err := verbs.Open(path)
	fake.RequireOpened(t, err)
	shared.lib = l
	return l
}

// newControl returns the fake, or skips the test.
func newControl(t testing.TB) *fake.Control {
	t.Helper()
	if real() {
		testkit.Skip(t, testkit.Unavailable{What: "a real device cannot be made to fail", Remedy: "unset CASCADE_TEST_VERBS"})
	}
	c := fake.Open(t, fake.Verbs(t))
	return c
}

// servedTransport is a transport with a server of its own.
type servedTransport struct {
	*Transport
	server transporttest.HTTPServer
}

func (s *servedTransport) Run(ctx context.Context) error {
	return s.server.Serve(ctx, s.Handler(), s.Transport.Run)
}

// newTransport returns a transport over a memory.
func newTransport(t testing.TB, m *transport.Memory) *servedTransport {
	t.Helper()
	return newTransportOn(t, openLibrary(t), m)
}

func newTransportOn(t testing.TB, lib *verbs.Library, m *transport.Memory) *servedTransport {
	t.Helper()
	s := &servedTransport{}
	var err error
	s.Transport, err = New(Config{Library: lib, Address: s.server.Address, Pool: transporttest.Pool{M: m}})
	testkit.NoError(t, err)
	return s
}

func newEnd(t testing.TB, l transport.Layout) transporttest.End {
	t.Helper()
	m := transporttest.HeapMemory(l)
	return transporttest.End{Transport: newTransport(t, m), Memory: m, Unbound: true}
}

func newPair(t *testing.T, source, target transport.Layout) transporttest.Pair {
	return transporttest.Pair{Source: newEnd(t, source), Target: newEnd(t, target)}
}

// requireNothingOpen fails if objects of the library are open at the end of the test.
func requireNothingOpen(t *testing.T) {
	lib := openLibrary(t)
	t.Cleanup(func() {
		if n := lib.OpenResources(); n != (verbs.Resources{}) {
			t.Errorf("%+v are left", n)
		}
	})
	if !real() {
		c := newControl(t)
		t.Cleanup(func() {
			if n := c.Live(""); n != 0 {
				t.Errorf("%d handles are open", n)
			}
		})
	}
}

// start starts a pair of these layouts.
func start(t testing.TB, source, target transport.Layout) *transporttest.Link {
	t.Helper()
	return transporttest.Start(t, transporttest.Pair{Source: newEnd(t, source), Target: newEnd(t, target)})
}

func TestConformance(t *testing.T) {
	requireNothingOpen(t)
	transporttest.Run(t, newPair)
}

func TestAllocations(t *testing.T) {
	if real() {
		testkit.Skip(t, testkit.Unavailable{What: "the device is a real one, and the fake one shows the same", Remedy: "unset CASCADE_TEST_VERBS"})
	}
	requireNothingOpen(t)
	transporttest.RunAllocations(t, newPair)
}
