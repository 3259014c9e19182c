package server_test

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// redirectListener is an address that forwards to one server after another.
type redirectListener struct {
	net.Listener
	wg sync.WaitGroup

	mu    sync.Mutex
	to    string
	conns []net.Conn
}

func newRedirectListener(t *testing.T, to string) *redirectListener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &redirectListener{Listener: l, to: to}
	d.wg.Go(d.run)
	t.Cleanup(func() {
		l.Close()
		d.redirectTo("")
		d.wg.Wait()
	})
	return d
}

func (d *redirectListener) run() {
	for {
		in, err := d.Accept()
		if err != nil {
			return
		}
		d.mu.Lock()
		out, err := net.Dial("tcp", d.to)
		if err != nil {
			in.Close()
			d.mu.Unlock()
			continue
		}
		d.conns = append(d.conns, in, out)
		d.mu.Unlock()
		d.wg.Go(func() { io.Copy(in, out); in.Close(); out.Close() })
		d.wg.Go(func() { io.Copy(out, in); in.Close(); out.Close() })
	}
}

// redirectTo forwards new connections to another server and cuts the present
// ones.
func (d *redirectListener) redirectTo(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.to = address
	for _, c := range d.conns {
		c.Close()
	}
	d.conns = nil
}

// TestEnvoyChangesServer has a real Envoy change from one server to another one
// with an equal set: it is sent nothing at first, and then what changes.
func TestEnvoyChangesServer(t *testing.T) {
	envoytest.Binary(t) // skips the test if there is none
	var planes [2]*benchServer
	for i := range planes {
		planes[i] = newServer(t, new(meter), []resources.Set{fleetSet(t, 4, 1000), fleetSet(t, 4, 1001)})
		planes[i].meter.arm(1 << 30)
		planes[i].set(0)
	}
	d := newRedirectListener(t, planes[0].address)
	boot, err := resources.Bootstrap(resources.BootstrapConfig{NodeID: "edge", ControlPlane: d.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	envoytest.Start(t, envoytest.Config{Bootstrap: string(boot)})
	settle(t, planes[0].meter, 8) // a subscription and an ACK for each of four types
	if planes[0].meter.resources.Load() == 0 {
		t.Error("first server sent nothing")
	}
	d.redirectTo(planes[1].address)
	settle(t, planes[1].meter, 6) // four subscriptions, and the ACKs of two initial empty responses
	if sent := planes[1].meter.resources.Load(); sent != 0 {
		t.Errorf("second server sent %d resources", sent)
	}
	// An Envoy may split its subscriptions into several requests, the last of
	// which may come now, so responses are counted.
	asked := planes[1].meter.got.Load()
	planes[1].set(1)
	policytest.WaitFor(t, "a change from the second server", func() bool { return planes[1].meter.resources.Load() > 0 })
	settle(t, planes[1].meter, int(asked)+1)
	if sent := planes[1].meter.resources.Load(); sent != 1 {
		t.Errorf("one boundary changed: second server sent %d resources", sent)
	}
}
