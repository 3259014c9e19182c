package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// terminal is a pseudo-terminal in which a process runs.
type terminal struct {
	t    *testing.T
	file *os.File // our end
	name string   // of the other end
	wide bool

	mu  sync.Mutex
	out bytes.Buffer
}

// newTerminal opens a pseudo-terminal and reads what is written to it until the test ends.
func newTerminal(t *testing.T) *terminal {
	t.Helper()
	// O_NONBLOCK, so that Close ends the reads.
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		testkit.Skip(t, testkit.Unavailable{What: fmt.Sprint("there is no pseudo-terminal: ", err), Remedy: "mount devpts", InCI: true})
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	testkit.NoError(t, err)
	testkit.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	term := &terminal{t: t, file: os.NewFile(uintptr(fd), "ptmx"), name: fmt.Sprint("/dev/pts/", n)}
	term.resize()
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := term.file.Read(buf)
			term.mu.Lock()
			term.out.Write(buf[:n])
			term.mu.Unlock()
			switch {
			case errors.Is(err, syscall.EIO):
				time.Sleep(tick) // nothing has the other end open
			case err != nil:
				return
			}
		}
	}()
	t.Cleanup(func() {
		term.file.Close()
		<-done
	})
	return term
}

// resize changes the width of the terminal by one, at which programs draw everything anew.
func (term *terminal) resize() {
	term.t.Helper()
	width := 100
	if term.wide = !term.wide; term.wide {
		width++
	}
	testkit.NoError(term.t, unix.IoctlSetWinsize(int(term.file.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: uint16(width)}))
}

// press sends keys.
func (term *terminal) press(keys string) {
	term.t.Helper()
	_, err := term.file.WriteString(keys)
	testkit.NoError(term.t, err)
}

// await waits until a frame that is drawn from now on matches.
func (term *terminal) await(pattern string) {
	term.t.Helper()
	re := regexp.MustCompile(pattern)
	end := time.Now().Add(patience)
	for time.Now().Before(end) {
		term.mu.Lock()
		term.out.Reset()
		term.mu.Unlock()
		term.resize()
		for range 25 {
			time.Sleep(tick)
			if re.MatchString(term.text()) {
				return
			}
		}
	}
	term.t.Fatalf("the terminal does not show %q, but %q", pattern, term.text())
}

func (term *terminal) text() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.out.String()
}

// start runs "cascade" in the terminal, and returns how it ends.
func (term *terminal) start(env []string, args ...string) (end chan error) {
	term.t.Helper()
	tty, err := os.OpenFile(term.name, os.O_RDWR|unix.O_NOCTTY, 0)
	testkit.NoError(term.t, err)
	defer tty.Close()
	c := exec.Command(testkit.Must(os.Executable()))
	c.Args = append([]string{"cascade"}, args...)
	c.Env = append(append(os.Environ(), "TERM=xterm-256color", "LC_ALL=C.UTF-8"), env...)
	c.Stdin, c.Stdout, c.Stderr = tty, tty, tty
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	testkit.NoError(term.t, c.Start())
	end = make(chan error, 1)
	go func() { end <- c.Wait() }()
	term.t.Cleanup(func() { c.Process.Kill() })
	return end
}

// topStatus is the state of a fleet of two replicas.
const topStatus = `{"epoch": 3, "published_epoch": 3, "phase": "idle", "models": [{"name": "m", "context": 8192, "epoch": 3, "rate": 2.5, "scaling": {"desired": 3, "present": 2},
 "stages": [{"name": "s0", "low": 0, "high": 1024, "replicas": [{"id": "r-short", "health": "healthy", "held_tokens": 10}]},
            {"name": "s1", "low": 1024, "replicas": [{"id": "r-long", "health": "draining", "drain": ["operator"], "residents": 4, "held_tokens": 20}]}]}],
 "nodes": [{"id": "edge-0", "epoch": 3, "connected": true, "current": true}]}`

// serveTop starts a control plane at an address.
func serveTop(t *testing.T, address string, asked *atomic.Int64) (server *http.Server, at string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	testkit.NoError(t, err)
	server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/status":
			asked.Add(1)
			fmt.Fprint(w, topStatus)
		case "/migrations":
			fmt.Fprint(w, `{"migrations": [{"id": "a/1", "request": "a/7", "cause": "growth", "from": "r-short", "to": "r-long", "method": "live", "state": "done", "stall_seconds": 0.024}]}`)
		}
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return server, l.Addr().String()
}

// TestTopInTerminal runs the command in a pseudo-terminal: frames, keys, sizes, a control plane that goes and
// comes back, and the end.
func TestTopInTerminal(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	server, address := serveTop(t, "127.0.0.1:0", &asked)
	term := newTerminal(t)
	end := term.start(nil, "top", "--every", "250ms", "--control", "http://"+address)
	term.await(`OK(?s:.*)r-short(?s:.*)r-long(?s:.*)growth(?s:.*)edge-0`)
	if !regexp.MustCompile(`\x1b\[[0-9;]*32[0-9;]*m`).MatchString(term.text()) {
		t.Errorf("no green: %q", term.text())
	}
	term.press("s")
	term.await(`by load`)
	term.press("/dra\r")
	term.await(`1 hidden`)
	term.press("\x1b")
	term.await(`r-short`)
	term.press("?")
	term.await(`scroll the replicas`)
	term.press("?")
	began, before := time.Now(), asked.Load()
	term.await(`by load`)
	testkit.WaitFor(t, "three more requests", func() bool { return asked.Load() >= before+3 })
	if n, most := asked.Load()-before, int64(time.Since(began)/(250*time.Millisecond))+2; n > most {
		t.Errorf("%d requests in %v, want at most %d", n, time.Since(began), most)
	}
	testkit.NoError(t, server.Close())
	term.await(`NO ANSWER(?s:.*)r-short`)
	serveTop(t, address, &asked)
	term.await(`OK(?s:.*)r-short`)
	term.press("q")
	select {
	case err := <-end:
		testkit.NoError(t, err)
		// What it has written last may come after its end.
		testkit.WaitFor(t, "the terminal to leave the screen of its own", func() bool { return strings.Contains(term.text(), "\x1b[?1049l") })
	case <-time.After(patience):
		t.Fatal("it does not end")
	}
}

// TestTopWithoutColour: NO_COLOR is respected, and a signal ends the command as q does.
func TestTopWithoutColour(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	_, address := serveTop(t, "127.0.0.1:0", &asked)
	term := newTerminal(t)
	end := term.start([]string{"NO_COLOR=1"}, "top", "--control", "http://"+address)
	term.await(`OK(?s:.*)r-short`)
	if m := regexp.MustCompile(`\x1b\[[0-9;]*3[0-9][0-9;]*m`).FindString(term.text()); m != "" {
		t.Errorf("a colour, %q, in %q", m, term.text())
	}
	term.press("\x03")
	select {
	case err := <-end:
		testkit.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("it does not end")
	}
}
