package move_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	libibverbs "github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/verbs"
)

// onDevices are the faults of a fake RDMA device; a real device injects none of them.
var onDevices = deviceFaults("'s device fails", " is unplugged", "fake_unplug")

// TestFaultAtEveryStepOverRDMA injects each fault at each step of migrations over verbs: on a fake
// device, which can fail as well (see deviceStride), or, if CASCADE_TEST_VERBS is set, on the
// machine's own device. An
// emulated machine is slow: unless the variable is "all", the test uses a sixth of the steps for
// each fault there, such that each step gets a sixth of the faults; pulls get all faults.
func TestFaultAtEveryStepOverRDMA(t *testing.T) {
	f, path, stride := &sharedDevices{}, "", 6
	kinds := slices.Clone(kinds)
	switch os.Getenv("CASCADE_TEST_VERBS") {
	case "all":
		stride = 1
	case "":
		stride, path = deviceStride(), fake.Verbs(t)
		f.control = fake.Open(t, path)
		f.control.Set("fake_devices", spare)
		kinds = append(kinds, onDevices...)
	}
	var err error
	f.library, err = libibverbs.Open(path)
	fake.RequireOpened(t, err)
	f.open(t)
	t.Run("kinds", func(t *testing.T) {
		faultAtEveryStep(t, kinds, stride, func(n *replica) carrier { return f.carry(n) })
	})
	if n := f.library.OpenResources(); n != (libibverbs.Resources{}) {
		t.Errorf("%+v are left", n)
	}
	if f.control != nil && f.control.Live("") != 0 {
		t.Errorf("%d handles are left", f.control.Live(""))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	fmt.Printf("\nrdma-check: migrations | %d faults at %d steps of moves, every %s pair of them | %d pulls, %d of them failed; nothing left\n", len(kinds), len(points), map[int]string{1: "single", 4: "fourth", 6: "sixth"}[stride], f.pulls, f.failed)
}

// carry gives a replica a transport over verbs, and the server through which peers reach it.
func (f *sharedDevices) carry(n *replica) carrier {
	c := f.newCarrier(n)
	f.runOutside(func() {
		name := ""
		if f.control != nil {
			c.device = <-f.devices
			name = "fake" + strconv.Itoa(c.device)
		}
		real := testkit.Must(verbs.New(verbs.Config{Library: f.library, Device: func() string { return name }, Address: c.where, Pool: n.engine}))
		c.Transport, c.serve = real, func() func() error { return c.serveVerbs(real.Handler()) }
	})
	c.breakPull = func(ctx context.Context, p transport.Puller, source *deviceCarrier, _ transport.Plan) (err error) {
		f.runOutside(source.hangUp)
		for err == nil { // until the puller detects it
			_, err = p.Pull(ctx, transport.Plan{})
		}
		return err
	}
	return c
}

// serveVerbs runs the server and the transport, and returns the function that stops them.
func (c *deviceCarrier) serveVerbs(h http.Handler) func() error {
	server := httptest.NewUnstartedServer(h)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	c.setAddress(server.Listener.Addr().String())
	c.hangUp = server.CloseClientConnections
	stop := c.runTransport()
	return func() error {
		defer c.returnDevice()
		err := stop()
		c.setAddress("")
		server.CloseClientConnections()
		server.Close()
		return err
	}
}
