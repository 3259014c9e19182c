package localuser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestAttackSocket connects as another user of the host: it is disconnected unless it is admitted. A socket that is in
// use stays, and one that a process has left is replaced.
func TestAttackSocket(t *testing.T) {
	testkit.SkipUnlessRoot(t)
	for users, want := range map[string]string{"": "user 4242 is not admitted", "4242": "", Any: ""} {
		dir := testkit.Must(os.MkdirTemp("/tmp", "localuser"))
		defer os.RemoveAll(dir)
		testkit.NoError(t, os.Chmod(dir, 0o755)) // another user connects
		path := filepath.Join(testkit.Must(filepath.EvalSymlinks(dir)), "socket")
		left := testkit.Must(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))
		p := testkit.Must(New(strings.Fields(users)))
		if _, err := p.Listen(path, nil); err == nil {
			t.Error("a socket in use is replaced")
		}
		left.SetUnlinkOnClose(false)
		testkit.NoError(t, left.Close())
		refused := make(chan error, 2)
		l := testkit.Must(p.Listen(path, func(err error) { refused <- err }))
		accepted := make(chan net.Conn, 2)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				accepted <- conn
			}
		}()
		var other net.Conn
		testkit.RunAs(t, 4242, func() (err error) {
			other, err = net.Dial("unix", path)
			return err
		})
		var got error
		select {
		case got = <-refused:
		case conn := <-accepted:
			conn.Close()
		}
		if text := errors.Join(got); (text == nil) != (want == "") || text != nil && text.Error() != want {
			t.Errorf("users %q: %v, want %q", users, text, want)
		}
		own := testkit.Must(net.Dial("unix", path))
		testkit.WaitForEvent(t, "root is admitted", accepted)
		own.Close()
		other.Close()
		l.Close()
		<-done
	}
}

// TestAttackServer has another user of the host listen where a process of the fleet should: it gets no connection,
// unless it is admitted.
func TestAttackServer(t *testing.T) {
	testkit.SkipUnlessRoot(t)
	name := fmt.Sprint("@cascade-localuser-test-", os.Getpid())
	var l net.Listener
	testkit.RunAs(t, 4242, func() (err error) {
		l, err = net.Listen("unix", name)
		return err
	})
	defer l.Close()
	for users, want := range map[string]string{"0": "the server at " + name + ": user 4242 is not admitted", "4242": ""} {
		conn, err := testkit.Must(New([]string{users})).Dial(context.Background(), name)
		if want != "" {
			testkit.WantError(t, err, want)
			continue
		}
		testkit.NoError(t, err)
		conn.Close()
	}
}
