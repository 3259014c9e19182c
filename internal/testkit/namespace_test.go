package testkit_test

import (
	"bufio"
	"errors"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestLink: over a link that is down a connection carries nothing and is not closed; over the other one it goes on, and
// over the first one again when it is up.
func TestLink(t *testing.T) {
	n := testkit.NewNamespace(t, 2)
	server := serveEcho(t, n)
	var conns []net.Conn
	for _, l := range n.Links {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(l.Address, server), 10*time.Second)
		testkit.NoError(t, err)
		defer conn.Close()
		conns = append(conns, conn)
	}
	echo := func(conn net.Conn, within time.Duration) error {
		testkit.NoError(t, conn.SetDeadline(time.Now().Add(within)))
		if _, err := conn.Write([]byte("x\n")); err != nil {
			return err
		}
		_, err := conn.Read(make([]byte, 2))
		return err
	}
	for _, conn := range conns {
		testkit.NoError(t, echo(conn, 10*time.Second))
	}
	n.Links[0].Down()
	if err := echo(conns[0], 300*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("over a link that is down: %v", err)
	}
	testkit.NoError(t, echo(conns[1], 10*time.Second))
	n.Links[0].Up()
	testkit.NoError(t, echo(conns[0], 30*time.Second))
}

// serveEcho runs this test's binary as a server in the namespace, and returns its port.
func serveEcho(t *testing.T, n *testkit.Namespace) string {
	t.Helper()
	args := n.Command(os.Args[0], "-test.run=^TestServer$")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "NETNSTEST_SERVE=1")
	out, err := cmd.StdoutPipe()
	testkit.NoError(t, err)
	testkit.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	port, err := bufio.NewReader(out).ReadString('\n')
	testkit.NoError(t, err)
	return port[:len(port)-1]
}

// TestServer is the server of serveEcho; without its variable it is no test.
func TestServer(t *testing.T) {
	if os.Getenv("NETNSTEST_SERVE") == "" {
		return
	}
	l, err := net.Listen("tcp4", ":0")
	testkit.NoError(t, err)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	os.Stdout.WriteString(port + "\n")
	for {
		conn, err := l.Accept()
		testkit.NoError(t, err)
		go func() {
			b := make([]byte, 16)
			for {
				k, err := conn.Read(b)
				if err != nil {
					return
				}
				conn.Write(b[:k])
			}
		}()
	}
}
