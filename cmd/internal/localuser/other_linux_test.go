package localuser

import (
	"net"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// dialAs connects as another user.
func dialAs(t *testing.T, uid int, address string) (conn net.Conn) {
	t.Helper()
	testkit.RunAs(t, uid, func() (err error) {
		conn, err = net.Dial("tcp", address)
		return err
	})
	return conn
}

// TestAttackOtherUser connects as another user of the host.
func TestAttackOtherUser(t *testing.T) {
	testkit.SkipUnlessRoot(t)
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	for _, c := range []struct {
		uid   int
		users []string
		want  string
	}{{4242, nil, "user 4242 is not admitted"}, {4242, []string{"4243"}, "user 4242 is not admitted"}, {4242, []string{"4242"}, ""}, {4242, []string{Any}, ""}, {0, []string{"4242"}, ""}} {
		conn := dialAs(t, c.uid, l.Addr().String())
		served := testkit.Must(l.Accept())
		err := testkit.Must(New(c.users)).Admit(addressOf(served.RemoteAddr()), addressOf(served.LocalAddr()))
		if err != nil && err.Error() != c.want || err == nil && c.want != "" {
			t.Errorf("user %d of %q: %v, want %q", c.uid, c.users, err, c.want)
		}
		conn.Close()
		served.Close()
	}
}
