package verbs

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// real says that the tests run on the machine's own library and device: in the
// guest of "make rdma-check", or where there is an RDMA device.
func real() bool { return os.Getenv("CASCADE_TEST_VERBS") != "" }

// shared is the library of all tests, so that what is open of it is known.
var shared struct {
	sync.Mutex
	lib *verbs.Library
}

// library is the library that the tests run on: the fake, or with
// CASCADE_TEST_VERBS=1 the machine's own.
func library(t testing.TB) *verbs.Library {
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
	if errors.Is(err, device.ErrNoCgo) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	shared.lib = l
	return l
}

// control is the fake, or a skipped test.
func control(t testing.TB) *fake.Control {
	t.Helper()
	if real() {
		t.Skip("a real device cannot be told to fail")
	}
	c := fake.Open(t, fake.Verbs(t))
	return c
}

// served is a transport behind a server of its own, as a daemon's is behind its
// front.
type served struct {
	*Transport
	address atomic.Value
}

func (s *served) Run(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: s.Handler(), Protocols: new(http.Protocols)}
	server.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	s.address.Store(l.Addr().String())
	err = s.Transport.Run(ctx)
	s.address.Store("")
	server.Close()
	<-done
	return err
}

// over is a transport over a memory.
func over(t testing.TB, m *transport.Memory) *served {
	t.Helper()
	return with(t, library(t), m)
}

func with(t testing.TB, lib *verbs.Library, m *transport.Memory) *served {
	t.Helper()
	s := &served{}
	s.address.Store("")
	var err error
	s.Transport, err = New(Config{Library: lib, Address: func() string { return s.address.Load().(string) }, Pool: transporttest.Pool{M: m}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func side(t testing.TB, l transport.Layout) transporttest.End {
	t.Helper()
	m := transporttest.HeapMemory(l)
	return transporttest.End{Transport: over(t, m), Memory: m}
}

func ends(t *testing.T, source, target transport.Layout) transporttest.Pair {
	return transporttest.Pair{Source: side(t, source), Target: side(t, target)}
}

// nothingLeft fails where something of a library is open at the end of a test.
func nothingLeft(t *testing.T) {
	lib := library(t)
	t.Cleanup(func() {
		if n := lib.OpenResources(); n != (verbs.Resources{}) {
			t.Errorf("%+v are left", n)
		}
	})
	if !real() {
		c := control(t)
		t.Cleanup(func() {
			if n := c.Live(""); n != 0 {
				t.Errorf("%d handles are left", n)
			}
		})
	}
}

func TestConformance(t *testing.T) {
	nothingLeft(t)
	transporttest.Run(t, ends)
}

func TestAllocations(t *testing.T) {
	if real() {
		t.Skip("the fake has the same")
	}
	nothingLeft(t)
	transporttest.RunAllocations(t, ends)
}
