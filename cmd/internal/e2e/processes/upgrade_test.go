package processes

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// TestRollingUpgrade replaces every process of every replica under load: first each migrator by a
// new one beside it, one of them while other replicas generate for its clients, then each engine once it is drained. No
// request fails and no stream is cut.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	f := newFleet(t, setup{envoy: true, replicas: 3})
	load := f.newLoad(10, 250, 300, 1000, 4000)
	load.WaitForRequests(10)

	for i, r := range f.replicas {
		if i == 1 {
			// Its clients' requests continue elsewhere, and it remains their front end.
			f.Order("drain", r.ID)
			f.awaitDrained(r.ID)
		}
		old := r.migrator
		r.startMigrator()
		if i == 1 {
			f.Order("undrain", r.ID)
		}
		old.Wait()
		if out := old.Log.String(); !strings.Contains(out, "another process has taken over") {
			t.Errorf("the migrator of %s ends by itself: %s", r.ID, out)
		}
		f.awaitURL("http://"+r.Admin+"/readyz", "ready")
		r.f.AwaitServing(r.ID)
	}
	load.WaitForRequests(10)

	for _, r := range f.replicas {
		f.cascade("drain", r.ID, "--wait", "--timeout", patience.String())
		r.engine.Stop()
		r.startEngine()
		f.awaitURL("http://"+r.Admin+"/readyz", "ready")
		f.cascade("drain", "--undo", r.ID)
		r.f.AwaitServing(r.ID)
	}
	load.WaitForRequests(10)
	load.Stop()
	load.Report()
	if harness.Tally(f.T, f.migrations()) == 0 {
		t.Error("no request migrated")
	}
	f.awaitEmpty(f.replicas...)
}

// TestProxyUpgrade replaces the embedded proxy under load, twice: no request fails, and a stream ends
// with its last token at the process that has begun it, whatever --drain says. That process ends once the client has
// closed its idle connections. systemd follows the process that serves.
func TestProxyUpgrade(t *testing.T) {
	t.Parallel()
	f := newFleet(t, setup{replicas: 2, log: []string{"--log", "info"}})
	load := f.newLoad(8, 40, 300, 1000)
	load.WaitForRequests(10)
	socket, receive := f.notifySocket(t)
	f.proxyEnv = []string{socket}
	for i := range 2 {
		stream := f.Stream(harness.Prompt(99+i, 350, 500))
		old := f.proxy
		f.startProxy("--drain", "1ms")
		old.WaitForLog("another process has taken over")
		f.proxy.WaitForLog("proxy serves on")
		if i > 0 { // the first process does not run under systemd
			receive(fmt.Sprintf("MAINPID=%d", f.proxy.PID()))
		}
		receive("READY=1")
		load.WaitForAll()
		running := old.Running()
		select {
		case <-stream.Ended:
			t.Error("the stream did not outlast the hand-over")
		default:
			if !running {
				t.Error("the old process did not wait for its stream")
			}
		}
		stream.Wait()
		testkit.NoError(t, stream.Whole())
		f.HTTP.CloseIdleConnections() // the stream's may be one of them, and the old process leaves it to its client
		old.Wait()
	}
	load.Stop()
	load.Report()
}

// notifySocket listens in place of systemd. It returns the environment variable of the daemons, and a
// function that requires the next message.
func (f *fleet) notifySocket(t *testing.T) (variable string, receive func(want string)) {
	path := f.path("notify")
	systemd := testkit.Must(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}))
	t.Cleanup(func() { systemd.Close() })
	return "NOTIFY_SOCKET=" + path, func(want string) {
		t.Helper()
		b := make([]byte, 100)
		testkit.NoError(t, systemd.SetReadDeadline(time.Now().Add(patience)))
		if n, err := systemd.Read(b); err != nil || string(b[:n]) != want {
			t.Errorf("systemd received %q, %v, want %q", b[:n], err, want)
		}
	}
}

// TestSignalDrains ends a migrator with SIGTERM: its engine's requests go to the other replica, and their
// clients read on through it until their streams end. The daemons
// reach each other by sockets that name their user.
func TestSignalDrains(t *testing.T) {
	t.Parallel()
	f := newFleet(t, setup{replicas: 2, edit: func(c *config.Fleet) {
		c.Speed, c.Control.AdminUsers, c.Control.Socket = 1, []string{"root"}, filepath.Join(t.TempDir(), "s")
	}})
	r0, r1 := f.replicas[0], f.replicas[1]
	if conn, err := net.Dial("tcp", r0.Peer); err == nil {
		conn.Close()
		t.Error("a user of the host reaches the peers' port")
	}
	f.Order("drain", r1.ID)
	f.AwaitStatus("only r0 serves", func(s control.Status) bool {
		return len(harness.Find(s, r0.ID).Drain) == 0 && len(harness.Find(s, r1.ID).Drain) > 0 && allProxiesCurrent(s)
	})
	streams := []*harness.Stream{f.Stream(harness.Prompt(1, 350, forever))}
	f.AwaitStatus("the stream runs at r0", func(s control.Status) bool { return harness.Find(s, r0.ID).Residents == 1 })
	f.Order("undrain", r1.ID)
	r0.migrator.Signal(syscall.SIGTERM)
	f.awaitEmpty(r0)
	f.WaitForGrowth(streams)
	f.RequireTexts(streams)
	r0.migrator.Wait()
}

// TestPredecessorMigrates replaces a migrator whose clients' streams run on its own engine and outlast it:
// they count as the replica's load, migrate away when it is drained, and migrate further, while the
// replaced process is their front end. Then it is replaced again: systemd is sent the successor's process id by the
// process that it follows, before that one ends, and the successor's readiness.
func TestPredecessorMigrates(t *testing.T) {
	t.Parallel()
	f := newFleet(t, setup{replicas: 3, edit: func(c *config.Fleet) { c.Speed = 1 }})
	r0, r1, r2 := f.replicas[0], f.replicas[1], f.replicas[2]
	f.Order("drain", r1.ID)
	f.Order("drain", r2.ID)
	f.AwaitStatus("only r0 serves", func(s control.Status) bool {
		return len(harness.Find(s, r0.ID).Drain) == 0 && len(harness.Find(s, r1.ID).Drain) > 0 && len(harness.Find(s, r2.ID).Drain) > 0 && allProxiesCurrent(s)
	})
	var streams []*harness.Stream
	for i := range hopping {
		streams = append(streams, f.Stream(harness.Prompt(1+i, 350+500*i, forever)))
	}
	here := func(s control.Status) bool { return harness.Find(s, r0.ID).Residents == hopping }
	f.AwaitStatus("all streams run at r0", here)

	socket, receive := f.notifySocket(t)
	r0.env = []string{socket}
	old := r0.migrator
	r0.startMigrator()
	receive("READY=1") // the first process does not run under systemd
	old.WaitForLog("another process has taken over")
	f.AwaitStatus("the new process counts the old one's streams", func(s control.Status) bool {
		n := harness.Find(s, r0.ID)
		return here(s) && n.Running == hopping && n.Streams == hopping && n.Held > 0
	})
	f.Order("undrain", r1.ID)
	f.cascade("drain", r0.ID, "--wait", "--timeout", patience.String())
	f.awaitEmpty(r0)
	f.AwaitStatus("all streams run at r1", func(s control.Status) bool { return harness.Find(s, r1.ID).Residents == hopping })
	f.Order("undrain", r2.ID)
	f.cascade("drain", r1.ID, "--wait", "--timeout", patience.String())
	f.awaitEmpty(r0, r1)
	f.WaitForGrowth(streams)
	f.RequireTexts(streams)
	old.Wait()
	if n := harness.Tally(f.T, f.migrations()); n < 2*hopping {
		t.Errorf("%d migrations are reported, want %d", n, 2*hopping)
	}
	f.awaitEmpty(f.replicas...)

	old = r0.migrator
	r0.startMigrator()
	receive(fmt.Sprintf("MAINPID=%d", r0.migrator.PID()))
	receive("READY=1")
	old.Wait()
	r0.migrator.Signal(syscall.SIGTERM)
	receive("STOPPING=1")
	r0.migrator.Wait()
}

// allProxiesCurrent reports whether every proxy has the newest plan, so that none sends a drained replica
// another request.
func allProxiesCurrent(s control.Status) bool {
	return s.Phase == "idle" && s.PublishedEpoch == s.Epoch && len(s.Nodes) > 0 &&
		!slices.ContainsFunc(s.Nodes, func(n control.Node) bool { return !n.Current || n.Epoch != s.Epoch })
}
