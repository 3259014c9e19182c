package transporttest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// sourceArgument is the environment variable that makes a test binary a source.
const sourceArgument = "CASCADE_TEST_SOURCE"

// RunSource makes this process a source if StartSource has started it: it serves an offer
// of an end until it is killed. Otherwise it returns. TestMain calls it. start makes the
// end of an argument, and returns what else the test needs to know, without spaces.
func RunSource(start func(argument string) (End, string, error)) {
	argument := os.Getenv(sourceArgument)
	if argument == "" {
		return
	}
	fail := func(err error) {
		fmt.Println(err)
		os.Exit(1)
	}
	e, extra, err := start(argument)
	if err != nil {
		fail(err)
	}
	go func() { fail(e.Transport.Run(context.Background())) }()
	g := transport.Grant{Migration: "a/1", Receiver: Receiver, Deadline: time.Now().Add(time.Hour)}
	offer := WaitForExport(&testing.T{}, e.Transport, g)
	announceAll(e, g.Migration)
	fmt.Printf("%s %s %x %s\n", offer.Transport, offer.Address, offer.Ticket, extra)
	bufio.NewReader(os.Stdin).ReadByte() // until the test ends
	os.Exit(0)
}

// StartSource starts a source in a process of its own. kill kills it.
func StartSource(t testing.TB, argument string, env ...string) (offer transport.Offer, extra string, kill func()) {
	t.Helper()
	self := testkit.Must(os.Executable())
	c := exec.CommandContext(t.Context(), self)
	c.Env = append(append(os.Environ(), sourceArgument+"="+argument), env...)
	testkit.Must(c.StdinPipe())
	out := testkit.Must(c.StdoutPipe())
	testkit.NoError(t, c.Start())
	kill = func() {
		c.Process.Kill()
		c.Wait()
	}
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the source: %q, %v", line, err)
	}
	var ticket []byte
	if _, err := fmt.Sscanf(line+" ", "%s %s %x %s", &offer.Transport, &offer.Address, &ticket, &extra); len(ticket) != transport.TicketSize {
		t.Fatalf("the source: %q, %v", line, err)
	}
	offer.Ticket = [transport.TicketSize]byte(ticket)
	return offer, extra, kill
}

// SocketDir returns a directory whose path is short enough for sockets.
func SocketDir(t testing.TB) string {
	t.Helper()
	dir := testkit.Must(os.MkdirTemp("", "pull"))
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "pull")
}

// HTTPServer serves the handler of a transport, as a daemon's front end does.
type HTTPServer struct{ address atomic.Value }

// Address returns the address while Serve runs, "" before.
func (s *HTTPServer) Address() string {
	address, _ := s.address.Load().(string)
	return address
}

// Serve serves h, with HTTP/2 in plain text, while run runs.
func (s *HTTPServer) Serve(ctx context.Context, h http.Handler, run func(context.Context) error) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: h, Protocols: new(http.Protocols)}
	server.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	s.address.Store(l.Addr().String())
	err = run(ctx)
	s.address.Store("")
	server.Close()
	<-done
	return err
}
