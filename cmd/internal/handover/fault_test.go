package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// servingProcess is a process with one listener, and the path that it serves.
type servingProcess struct {
	path     string
	listener net.Listener
	left     int
	served   chan error // what Serve returned
	stop     context.CancelFunc
	talks    []net.Conn
}

func newServingProcess(t *testing.T) *servingProcess {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	h := &servingProcess{path: filepath.Join(t.TempDir(), "s"), served: make(chan error, 1), stop: stop}
	var listeners Listeners
	_, h.listener = addListener(t, &listeners, "clients")
	server, _ := takeOver(t, h.path)
	go func() {
		_, err := server.Serve(ctx, Config{Listeners: &listeners, Stopped: func(int) { h.left++ }})
		h.served <- err
	}()
	t.Cleanup(func() {
		stop()
		h.listener.Close()
	})
	return h
}

// stopAndCheck stops the process and checks that it has not handed over.
func (h *servingProcess) stopAndCheck(t *testing.T) {
	t.Helper()
	h.stop()
	for _, conn := range h.talks {
		conn.Close()
	}
	if err := <-h.served; !errors.Is(err, context.Canceled) || h.left != 0 {
		t.Errorf("Serve: %v, left %d times", err, h.left)
	}
}

// connect opens a connection to a process.
func (h *servingProcess) connect(t *testing.T) *net.UnixConn {
	t.Helper()
	conn, err := net.Dial("unixpacket", h.path)
	testkit.NoError(t, err)
	h.talks = append(h.talks, conn)
	return conn.(*net.UnixConn)
}

// TestSuccessorFails makes the successor fail at every step: the process continues, and the next
// successor finds it.
func TestSuccessorFails(t *testing.T) {
	h := newServingProcess(t)
	ctx := t.Context()
	before := testkit.OpenFiles(t)
	for name, fail := range map[string]func(){
		"after it has connected": func() { h.connect(t).Close() },
		"after it has asked": func() {
			conn := h.connect(t)
			if err := send(conn, packet{Step: "ask"}); err != nil {
				t.Error(err)
			}
			conn.Close()
		},
		"with the sockets": func() {
			c, err := Begin(ctx, h.path)
			testkit.NoError(t, err)
			if len(c.Listeners) != 1 || c.Process != os.Getpid() {
				t.Errorf("%+v", c)
			}
			c.Abandon()
			c.Abandon()
		},
		"by another step": func() {
			expectRefusal(t, h.connect(t), `{"version":1,"step":"ready"}`, `sent "ready" instead of "ask"`)
		},
		"by nonsense": func() {
			conn := h.connect(t)
			if _, err := conn.Write([]byte("GET / HTTP/1.1")); err != nil {
				t.Error(err)
			}
		},
		"by too long a packet": func() {
			conn := h.connect(t)
			// The process may close the connection before it has received all.
			_, _ = conn.Write(make([]byte, maxPacket+1))
		},
		"by another version": func() {
			expectRefusal(t, h.connect(t), `{"version":9,"step":"ask"}`, "version 9, this one version 1")
		},
		"by unexpected files": func() {
			conn := h.connect(t)
			f, err := os.Open(os.DevNull)
			testkit.NoError(t, err)
			defer f.Close()
			if err := send(conn, packet{Step: "ask"}, int(f.Fd())); err != nil {
				t.Error(err)
			}
			if _, _, err := receive(conn, "listeners", patience); err == nil || !strings.Contains(err.Error(), "1 sockets came with 0 names") {
				t.Errorf("the error is %v", err)
			}
		},
	} {
		fail()
		conn, err := net.Dial("tcp", h.listener.Addr().String())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		in, err := h.listener.Accept()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		in.Close()
		conn.Close()
	}
	c, err := Begin(ctx, h.path)
	testkit.NoError(t, err)
	c.Abandon()
	h.stopAndCheck(t)
	waitForFiles(t, before)
}

// expectRefusal sends a packet and checks the reason in the answer.
func expectRefusal(t *testing.T, conn *net.UnixConn, packet, reason string) {
	t.Helper()
	if _, err := conn.Write([]byte(packet)); err != nil {
		t.Error(err)
	}
	if _, _, err := receive(conn, "listeners", patience); err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("the error is %v", err)
	}
}

// TestStopAcceptingWaitsForServers checks that each connection accepted earlier has reached its
// server when StopAccepting returns.
func TestStopAcceptingWaitsForServers(t *testing.T) {
	var d Listeners
	l, g := addListener(t, &d, "a")
	var known atomic.Bool
	accepted, leaving, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		conn, err := g.Accept()
		if err != nil {
			t.Error(err)
			close(accepted)
			return
		}
		defer conn.Close()
		close(accepted)
		<-leaving
		time.Sleep(10 * time.Millisecond) // so that a StopAccepting that does not wait is detected
		known.Store(true)
		if _, err := g.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("after StopAccepting: %v", err)
		}
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	testkit.NoError(t, err)
	defer conn.Close()
	<-accepted
	close(leaving)
	left := make(chan struct{})
	go func() {
		defer close(left)
		d.stopAccepting(nil) // nil: wait without a limit
	}()
	select {
	case <-left:
	case <-time.After(time.Minute): // it would wait forever
		t.Fatal("the server is in Accept again, and StopAccepting does not return")
	}
	if !known.Load() {
		t.Error("StopAccepting returned before the server was in Accept again")
	}
	g.Close()
	<-over
}

// TestStopAcceptingIsBounded checks that a server that never returns to Accept does not block its
// process.
func TestStopAcceptingIsBounded(t *testing.T) {
	var d Listeners
	l, g := addListener(t, &d, "a")
	defer g.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	testkit.NoError(t, err)
	defer conn.Close()
	accepted, err := g.Accept()
	testkit.NoError(t, err)
	defer accepted.Close()
	late := make(chan time.Time, 1)
	late <- time.Time{}
	d.stopAccepting(late)
	if _, err := d.Add("b", l); !errors.Is(err, ErrStopped) {
		t.Errorf("after it: %v", err)
	}
}

// TestPredecessorDies kills the process after it has sent the sockets and before it receives the successor's
// message: the successor replaces it.
func TestPredecessorDies(t *testing.T) {
	h := newServingProcess(t)
	c, err := Begin(t.Context(), h.path)
	testkit.NoError(t, err)
	l := c.TakeListener("clients", h.listener.Addr().String())
	if l == nil {
		t.Fatal("no socket")
	}
	defer l.Close()
	h.stop()
	<-h.served
	post, link, err := c.Finish(t.Context())
	if err != nil || link != nil {
		t.Fatal(link, err)
	}
	post.Close()
}

// TestCanceledTakeover ends the new process between Begin and Finish: the running one goes on.
func TestCanceledTakeover(t *testing.T) {
	h := newServingProcess(t)
	for range 20 {
		c, err := Begin(t.Context(), h.path)
		testkit.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if server, link, err := c.Finish(ctx); server != nil || link != nil || !errors.Is(err, context.Canceled) {
			t.Fatal(server, link, err)
		}
	}
	h.stopAndCheck(t)
}

// TestStoppedEndsContext ends the context in Stopped: the successor still receives its answer.
func TestStoppedEndsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ctx, stop := context.WithCancel(t.Context())
	server, _ := takeOver(t, path)
	served := make(chan error, 1)
	go func() {
		link, err := server.Serve(ctx, Config{Listeners: &Listeners{}, Stopped: func(int) {
			stop()
			time.Sleep(10 * time.Millisecond) // so that whatever the end of the context closes is closed
		}})
		link.Close()
		served <- err
	}()
	next, link := takeOver(t, path)
	next.Close()
	link.Close()
	testkit.NoError(t, <-served)
}

// TestStaleSocket checks that the socket left by a killed process stops no other process.
func TestStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for _, at := range []string{path, path + temporarySuffix} {
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: at, Net: "unixpacket"})
		testkit.NoError(t, err)
		l.SetUnlinkOnClose(false)
		l.Close()
	}
	c, err := Begin(t.Context(), path)
	if err != nil || len(c.Listeners) > 0 || c.Process != 0 {
		t.Fatalf("%+v, %v", c, err)
	}
	post, link, err := c.Finish(t.Context())
	if err != nil || link != nil {
		t.Fatal(link, err)
	}
	post.Close()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the path is not free: %v", err)
	}
}

// TestSilentPredecessor checks that a process that runs but sends nothing is an error when the caller's
// deadline expires, and so is a process that never finishes starting.
func TestSilentPredecessor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	testkit.NoError(t, err)
	ctx, enough := context.WithCancelCause(t.Context())
	defer enough(nil)
	asked := make(chan *net.UnixConn, 1)
	go func() {
		conn, err := l.AcceptUnix()
		if err == nil {
			conn.Read(make([]byte, 1))
		}
		enough(errors.New("enough"))
		asked <- conn
	}()
	if _, err := Begin(ctx, path); err == nil || !strings.Contains(err.Error(), "the process that serves "+path) {
		t.Errorf("silent: %v", err)
	}
	l.Close()
	if conn := <-asked; conn != nil {
		defer conn.Close()
	}
	f, err := lock(t.Context(), path)
	testkit.NoError(t, err)
	defer f.Close()
	if _, err := Begin(ctx, path); err == nil || !strings.Contains(err.Error(), "another process is starting at "+path+": enough") {
		t.Errorf("starting: %v", err)
	}
}

// TestOtherUsers checks that other users get no socket.
func TestOtherUsers(t *testing.T) {
	if runtime.GOOS != "linux" {
		testkit.Skip(t, testkit.Unavailable{What: "this system does not name the user of a Unix socket's client", Remedy: "run it on Linux"})
	}
	testkit.SkipUnlessRoot(t)
	h := newServingProcess(t)
	path := filepath.Join("/tmp", filepath.Base(filepath.Dir(h.path))+".sock")
	// Other users cannot access the test's own directories.
	if err := os.Link(h.path, path); err != nil {
		testkit.Skip(t, testkit.Unavailable{What: err.Error(), Remedy: "set TMPDIR to a directory on the file system of /tmp"})
	}
	defer os.Remove(path)
	testkit.NoError(t, os.Chmod(path, 0o666))
	testkit.RunAs(t, testkit.OtherUser, func() error {
		conn, err := net.Dial("unixpacket", path)
		if err != nil {
			return err
		}
		defer conn.Close()
		// The process may have closed the connection already.
		_, _ = io.WriteString(conn, `{"version":1,"step":"ask"}`)
		if b, _ := io.ReadAll(conn); len(b) > 0 {
			return fmt.Errorf("an answer came: %s", b)
		}
		return nil
	})
	h.stopAndCheck(t)
}

// TestTakeListenerMatchesAddress checks that a socket is not used if its address differs from the
// one in the present file.
func TestTakeListenerMatchesAddress(t *testing.T) {
	// Listeners on all interfaces are one socket of both families, however the address is written.
	for _, c := range []struct {
		listens, want string
		good          bool
	}{
		{"127.0.0.1:0", "127.0.0.1:0", true}, {"127.0.0.1:0", "127.0.0.1:1", false}, {"127.0.0.1:0", "127.0.0.2:0", false},
		{"127.0.0.1:0", "nonsense", false}, {"127.0.0.1:0", ":0", false}, {"127.0.0.1:0", "0.0.0.0:0", false},
		{"0.0.0.0:0", "0.0.0.0:0", true}, {"0.0.0.0:0", ":0", true}, {"0.0.0.0:0", "[::]:0", true}, {"[::]:0", "0.0.0.0:0", true},
		{"0.0.0.0:0", "127.0.0.1:0", false},
	} {
		l, err := net.Listen("tcp", c.listens)
		testkit.NoError(t, err)
		taken := &Takeover{Listeners: map[string]net.Listener{"clients": l}}
		got := taken.TakeListener("clients", c.want)
		if (got != nil) != c.good || taken.TakeListener("clients", c.want) != nil {
			t.Errorf("listening at %s, asked for %s: %v", l.Addr(), c.want, got)
		}
		l.Close()
	}
	for want, good := range map[string]bool{"@cascade-handover-test": true, "@cascade-handover": false, "127.0.0.1:0": false} {
		l, err := net.Listen("unix", "@cascade-handover-test")
		testkit.NoError(t, err)
		if got := (&Takeover{Listeners: map[string]net.Listener{"clients": l}}).TakeListener("clients", want); (got != nil) != good {
			t.Errorf("%s: %v", want, got)
		}
		l.Close()
	}
}

// TestListener checks that a server does not notice StopAccepting until it closes its listener, and
// that no listener can be added afterwards.
func TestListener(t *testing.T) {
	var d Listeners
	l, g := addListener(t, &d, "a")
	if _, err := d.Add("a", l); err == nil {
		t.Error("two sockets have one name")
	}
	if _, err := d.Add("b", g); err == nil {
		t.Error("a listener was added twice")
	}
	g.Close()
	if err := l.(*net.TCPListener).SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the socket of a closed listener is open: %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		l, g := addListener(t, &d, "a")
		d.StopAccepting()
		if _, err := d.Add("c", l); !errors.Is(err, ErrStopped) {
			t.Errorf("after StopAccepting: %v", err)
		}
		accepted := make(chan error, 1)
		go func() {
			_, err := g.Accept()
			accepted <- err
		}()
		synctest.Wait()
		select {
		case err := <-accepted:
			t.Errorf("Accept returns %v", err)
		default:
		}
		g.Close()
		if err := <-accepted; !errors.Is(err, net.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestPath(t *testing.T) {
	dir := t.TempDir()
	testkit.NoError(t, os.Chmod(dir, 0o700))
	path, err := Path(filepath.Join(dir, "run"), "a/b", "127.0.0.1:9000")
	if err != nil || filepath.Dir(path) != filepath.Join(dir, "run") || !strings.Contains(path, "a%2Fb@127.0.0.1:9000") {
		t.Errorf("%s, %v", path, err)
	}
	long, err := Path(dir, strings.Repeat("x", 128), "127.0.0.1:9000")
	other, _ := Path(dir, strings.Repeat("x", 128), "127.0.0.1:9001")
	if err != nil || len(long) > maxPath || long == other {
		t.Errorf("%s, %s, %v", long, other, err)
	}
	open := filepath.Join(dir, "open")
	testkit.NoError(t, os.Mkdir(open, 0o755))
	file := filepath.Join(dir, "file")
	testkit.NoError(t, os.Symlink(dir, file))
	for dir, want := range map[string]string{
		open: "must be a directory of this user with mode 0700; it has mode 0755", file: "must be a directory of this user", filepath.Join(dir, strings.Repeat("x", 100)): "too long",
	} {
		if _, err := Path(dir, "r0", "127.0.0.1:9000"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/1")
	if got := RuntimeDir(); got != "/run/user/1/cascade" {
		t.Error(got)
	}
	t.Setenv("XDG_RUNTIME_DIR", "")
	if got := RuntimeDir(); !strings.HasPrefix(got, os.TempDir()) {
		t.Error(got)
	}
}

func FuzzPacket(f *testing.F) {
	f.Add([]byte(`{"version":1,"step":"listeners","listeners":["a","b"]}`))
	f.Add([]byte(`{"version":1,"step":"refused","reason":"x"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := decode(body, "listeners")
		if err == nil && (m.Version != version || m.Step != "listeners" || len(m.Listeners) > maxListeners) {
			t.Fatalf("accepted: %+v", m)
		}
	})
}

// TestFewDescriptors has a successor ask while the process has no descriptor left: the process goes on serving the
// path, and the next successor takes over.
func TestFewDescriptors(t *testing.T) {
	if runtime.GOOS != "linux" {
		testkit.Skip(t, testkit.Unavailable{What: "this system does not hand over", Remedy: "run it on Linux"})
	}
	h := newServingProcess(t)
	fd := testkit.Must(unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))
	defer unix.Close(fd)
	var limit unix.Rlimit
	testkit.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	testkit.NoError(t, unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}, nil))
	err := unix.Connect(fd, &unix.SockaddrUnix{Name: h.path})
	time.Sleep(10 * time.Millisecond) // in which the process fails to accept
	testkit.NoError(t, errors.Join(err, unix.Prlimit(0, unix.RLIMIT_NOFILE, &limit, nil)))
	unix.Shutdown(fd, unix.SHUT_RDWR)
	c, err := Begin(t.Context(), h.path)
	testkit.NoError(t, err)
	if c.Process != os.Getpid() {
		t.Error("the process does not serve its path any more")
	}
	c.Abandon()
	h.stopAndCheck(t)
}
