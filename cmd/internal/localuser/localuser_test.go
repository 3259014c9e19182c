package localuser

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestOwnerInTable is TestOwnerOf where the kernel shows its tables only.
func TestOwnerInTable(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	conn := testkit.Must(net.Dial("tcp", l.Addr().String()))
	defer conn.Close()
	table, err := os.Open(tables[0])
	if err != nil {
		testkit.Skip(t, testkit.Unavailable{What: "this system has no " + tables[0], Remedy: "run it on Linux"})
	}
	defer table.Close()
	if uid, ok, err := findOwner(table, addressOf(conn.LocalAddr()), addressOf(l.Addr())); uid != os.Geteuid() || !ok || err != nil {
		t.Errorf("user %d, %v, %v", uid, ok, err)
	}
}

func addressOf(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }

// TestOwnerOf finds the user of this process behind connections of both families.
func TestOwnerOf(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("%s: %v", address, err) // a host without IPv6
			continue
		}
		defer l.Close()
		_, port, err := net.SplitHostPort(l.Addr().String())
		testkit.NoError(t, err)
		targets := []string{l.Addr().String()}
		if address == "[::]:0" {
			targets = []string{"127.0.0.1:" + port, "[::1]:" + port}
		}
		for _, target := range targets {
			conn := testkit.Must(net.Dial("tcp", target))
			defer conn.Close()
			served := testkit.Must(l.Accept())
			defer served.Close()
			uid, err := OwnerOf(addressOf(served.RemoteAddr()), addressOf(served.LocalAddr()))
			if err != nil || uid != os.Geteuid() {
				t.Errorf("%s: user %d, %v", target, uid, err)
			}
			// A client that sends and closes its socket at once has no owner any more, least of all root.
			closed := testkit.Must(net.Dial("tcp", target))
			left := testkit.Must(l.Accept())
			defer left.Close()
			testkit.NoError(t, closed.Close())
			_, _ = left.Read(make([]byte, 1)) // until the end of the client's half
			if uid, err := OwnerOf(addressOf(left.RemoteAddr()), addressOf(left.LocalAddr())); err == nil {
				t.Errorf("%s: user %d of a socket that no process holds", target, uid)
			}
			if uid, err := OwnerOf(addressOf(served.RemoteAddr()), netip.MustParseAddrPort("127.0.0.1:1")); err == nil {
				t.Errorf("%s: user %d of a connection to another server", target, uid)
			}
			none := netip.AddrPortFrom(addressOf(served.LocalAddr()).Addr(), 1)
			if uid, err := OwnerOf(addressOf(served.LocalAddr()), none); err == nil {
				t.Errorf("%s: user %d of a socket that listens", target, uid)
			}
		}
	}
	if uid, err := OwnerOf(netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("127.0.0.1:2")); err == nil {
		t.Errorf("user %d of a connection that does not exist", uid)
	}
}

// TestAttackManySockets checks that a look-up in a table of as many sockets as a host can have takes little memory:
// a client decides how many there are, and how many look-ups.
func TestAttackManySockets(t *testing.T) {
	line := "   1: 0100007F:8C7B 0100007F:9536 06 00000000:00000000 03:00000CF1 00000000     0        0 0 3 0000000000000000\n"
	table := "  sl  local_address\n" + strings.Repeat(line, 60_000) +
		"   2: 0100007F:8C7C 0100007F:9536 01 00000000:00000000 00:00000000 00000000  4242        0 77 1\n"
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	uid, ok, err := findOwner(strings.NewReader(table), netip.MustParseAddrPort("127.0.0.1:35964"), netip.MustParseAddrPort("127.0.0.1:38198"))
	runtime.ReadMemStats(&after)
	if uid != 4242 || !ok || err != nil {
		t.Errorf("user %d, %v, %v", uid, ok, err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 128<<10 {
		t.Errorf("a look-up among 60,000 sockets took %d KiB", took>>10)
	}
}

func TestNew(t *testing.T) {
	own := strconv.Itoa(os.Geteuid())
	for _, c := range []struct {
		users []string
		any   bool
		uids  string
	}{{nil, false, "[0 " + own + "]"}, {[]string{"4242", "root"}, false, "[0 4242 0]"}, {[]string{Any}, true, "[0]"}} {
		p := testkit.Must(New(c.users))
		if got := "[" + join(p.uids) + "]"; p.any != c.any || got != c.uids {
			t.Errorf("%v: any %v, %s", c.users, p.any, got)
		}
	}
	_, err := New([]string{"no-such-user"})
	testkit.WantError(t, err, "no-such-user")
}

func join(uids []int) (s string) {
	for i, u := range uids {
		if i > 0 {
			s += " "
		}
		s += strconv.Itoa(u)
	}
	return s
}

// FuzzFindOwner reads arbitrary tables.
func FuzzFindOwner(f *testing.F) {
	f.Add("  sl  local_address rem_address st\n   1: 0100007F:8C7B 0100007F:9536 01 0:0 0:0 0 1000 0 7\n")
	f.Add("0: 00000000000000000000000001000000:0001 : 1 1 1 1 -1")
	client, server := netip.MustParseAddrPort("127.0.0.1:35963"), netip.MustParseAddrPort("127.0.0.1:38198")
	f.Fuzz(func(t *testing.T, table string) {
		if uid, ok, _ := findOwner(strings.NewReader(table), client, server); ok && uid < 0 {
			t.Errorf("user %d", uid)
		}
	})
}
