package lease

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// at returns the address of a receiver on a host.
func at(host string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(host), Port: 1} }

// TestAttackWaitingReceivers opens far more connections than may wait for their ticket, from many
// hosts: the oldest ones of the host that has most are dropped, and the only one of another host
// never is.
func TestAttackWaitingReceivers(t *testing.T) {
	var a Admission
	dropped := map[int]bool{}
	entered := 0
	enter := func(host string) *Connection {
		n := entered
		entered++
		return a.Enter(at(host), func() {
			if dropped[n] {
				t.Errorf("connection %d is dropped twice", n)
			}
			dropped[n] = true
		})
	}
	single := enter("10.0.0.1")
	for host := range 100 {
		for range 2 * MaxWaitingOfHost {
			enter(fmt.Sprintf("10.0.1.%d", host))
		}
	}
	if want := entered - MaxWaiting; len(dropped) != want || len(a.waiting) != MaxWaiting {
		t.Errorf("%d of %d are dropped, want %d; %d wait", len(dropped), entered, want, len(a.waiting))
	}
	if dropped[0] || single.Admit() != nil {
		t.Error("the only connection of a host is dropped")
	}
	var alone Admission
	oldest := alone.Enter(at("10.0.0.1"), func() {})
	for range MaxWaitingOfHost {
		alone.Enter(at("10.0.0.1"), func() {})
	}
	testkit.WantError(t, oldest.Admit(), "dropped for newer connections")
	newest := enter("10.0.1.99")
	testkit.NoError(t, newest.Admit())
	old := enter("10.0.2.1")
	for range MaxWaitingOfHost {
		enter("10.0.2.1")
	}
	testkit.WantError(t, old.Admit(), "dropped for newer connections")
	old.Leave()
	single.Leave()
	newest.Leave()
	if len(a.pulls) != 0 || len(a.waiting) != MaxWaiting {
		t.Errorf("%d pulls and %d waiting connections are left", len(a.pulls), len(a.waiting))
	}
}

// TestAdmissionOfPulls admits as many pulls as one host may have, and then as many as all hosts
// together may have. The next one is refused until another one ends.
func TestAdmissionOfPulls(t *testing.T) {
	var a Admission
	admit := func(host string) (*Connection, error) {
		c := a.Enter(at(host), func() {})
		return c, c.Admit()
	}
	for range MaxSessionsOfHost {
		_, err := admit("10.0.0.1")
		testkit.NoError(t, err)
	}
	_, err := admit("10.0.0.1")
	testkit.WantError(t, err, "128 pulls of host 10.0.0.1 are open already")
	var last *Connection
	for range MaxSessions - MaxSessionsOfHost {
		last, err = admit("10.0.0.2")
		testkit.NoError(t, err)
	}
	_, err = admit("10.0.0.3")
	testkit.WantError(t, err, "256 pulls are open already")
	last.Leave()
	_, err = admit("10.0.0.3")
	testkit.NoError(t, err)
}

// TestHostOf checks which addresses count as one host: for IPv6 a network of 64 bits, of which a
// machine may use any address.
func TestHostOf(t *testing.T) {
	for address, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "2001:db8:1:2:3::4": "2001:db8:1:2::/64", "2001:db8:1:2:ffff::1": "2001:db8:1:2::/64",
	} {
		if got := hostOf(at(address)); got != want {
			t.Errorf("%s is of %s, want %s", address, got, want)
		}
	}
	if got := hostOf(&net.UnixAddr{Net: "unixpacket"}) + hostOf(nil); got != "unixpacket" {
		t.Errorf("a Unix socket is of %q", got)
	}
}

// TestAttackIdleReceivers opens more connections than there may be pulls and presents no ticket on
// any of them: a receiver that comes afterwards is served, and nothing is logged.
func TestAttackIdleReceivers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	var log testkit.Log
	testkit.Run(t, func(ctx context.Context) error {
		Serve(ctx, l, "test", slog.New(slog.NewTextHandler(&log, nil)), func(_ context.Context, c net.Conn, admit func() error) error {
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				return err
			}
			if err := admit(); err != nil {
				return err
			}
			_, err := c.Write([]byte("t"))
			return err
		})
		return nil
	})
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		testkit.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	for range 2 * MaxSessions {
		dial()
	}
	c := dial()
	c.Write([]byte("t"))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Errorf("a receiver with a ticket: %v", err)
	}
	if text := log.String(); text != "" {
		t.Errorf("%d lines are logged: %.300s", strings.Count(text, "\n"), text)
	}
}
