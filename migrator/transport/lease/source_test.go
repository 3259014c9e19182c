package lease_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// inBubble runs a test with a source that serves, in a synctest bubble.
func inBubble(t *testing.T, test func(t *testing.T, s *lease.Source)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &lease.Source{Transport: "test", Pool: transporttest.Pool{M: &transport.Memory{}}}
		s.Start(func() string { return "here" })
		test(t, s)
	})
}

// grantOf returns a grant of one second to receiver b.
func grantOf(migration string) transport.Grant {
	return transport.Grant{Migration: migration, Receiver: "b", Deadline: time.Now().Add(time.Second)}
}

func issue(s *lease.Source, migration string) [transport.TicketSize]byte {
	return testkit.Must(s.Export(grantOf(migration))).Ticket
}

func TestRedeemRefuses(t *testing.T) {
	inBubble(t, func(t *testing.T, s *lease.Source) {
		refused := func(ticket [transport.TicketSize]byte, who string) {
			t.Helper()
			if _, err := s.Redeem(ticket, "b"); !errors.Is(err, transport.ErrRefused) {
				t.Errorf("%s ticket: %v", who, err)
			}
		}
		ticket := issue(s, "a/1")
		wrong := ticket
		wrong[7] ^= 1
		refused(wrong, "wrong")
		refused([transport.TicketSize]byte{}, "empty")
		if _, err := s.Redeem(ticket, "c"); !errors.Is(err, transport.ErrRefused) {
			t.Errorf("another receiver's ticket: %v", err)
		}
		lease := testkit.Must(s.Redeem(ticket, "b"))
		refused(ticket, "used")
		lease.End()
		refused(ticket, "ended")
		late := issue(s, "a/2")
		time.Sleep(time.Second)
		refused(late, "expired")
		revoked := issue(s, "a/3")
		s.Revoke("a/3")
		refused(revoked, "revoked")
		stopped := issue(s, "a/4")
		s.Stop()
		s.Start(func() string { return "here" })
		refused(stopped, "stopped source's")
		closed := issue(s, "a/5")
		m, _ := s.Pool.Memory()
		m.Close()
		refused(closed, "closed memory's")
	})
}

// TestExportRefuses checks what a source exports nothing for.
func TestExportRefuses(t *testing.T) {
	inBubble(t, func(t *testing.T, s *lease.Source) {
		expired := grantOf("a/1")
		expired.Deadline = time.Now()
		for want, x := range map[string]struct {
			source *lease.Source
			grant  transport.Grant
		}{
			"Migration and Receiver are required": {s, transport.Grant{Receiver: "b", Deadline: expired.Deadline}},
			"its deadline has passed":             {s, expired},
			"the source does not run":             {&lease.Source{Pool: s.Pool}, grantOf("a/1")},
			"the engine is away":                  {&lease.Source{Pool: transporttest.Pool{}}, grantOf("a/1")},
		} {
			_, err := x.source.Export(x.grant)
			testkit.WantError(t, err, want)
		}
		s.Start(func() string { return "" })
		_, err := s.Export(grantOf("a/1"))
		testkit.WantError(t, err, "does not serve at any address yet")
	})
}

// TestGrantsAreBounded checks that MaxGrants bounds the grants in force, and that expired
// ones do not count.
func TestGrantsAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, s *lease.Source) {
		for i := range lease.MaxGrants {
			issue(s, fmt.Sprint("a/", i))
		}
		_, err := s.Export(grantOf("a/late"))
		testkit.WantError(t, err, "1024 grants are in force already")
		time.Sleep(time.Second)
		issue(s, "a/late")
	})
}

// TestLeaseEnds checks that Revoke waits for the users of a lease, and that no use begins after it, nor
// after the deadline.
func TestLeaseEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, s *lease.Source) {
		lease, expiring := testkit.Must(s.Redeem(issue(s, "a/1"), "b")), testkit.Must(s.Redeem(issue(s, "a/2"), "b"))
		if !lease.Enter() {
			t.Fatal("Enter of a new lease reports false")
		}
		revoked := false
		go func() { s.Revoke("a/1"); revoked = true }()
		<-lease.Done()
		synctest.Wait()
		if revoked {
			t.Error("Revoke returned while the lease had a user")
		}
		if lease.Enter() {
			t.Error("Enter of a revoked lease reports true")
		}
		lease.Leave()
		synctest.Wait()
		if !revoked {
			t.Error("Revoke did not return after Leave")
		}
		lease.End()
		time.Sleep(time.Second)
		if expiring.Enter() {
			t.Error("Enter of an expired lease reports true")
		}
		expiring.End()
	})
}

// TestLeaseHoldsItsMemory checks that a closed memory is unmapped when its last lease has
// ended.
func TestLeaseHoldsItsMemory(t *testing.T) {
	inBubble(t, func(t *testing.T, s *lease.Source) {
		unmapped := false
		m, _ := s.Pool.Memory()
		m.Unmap = func() { unmapped = true }
		lease := testkit.Must(s.Redeem(issue(s, "a/1"), "b"))
		m.Close()
		if unmapped {
			t.Error("the memory was unmapped before the lease ended")
		}
		lease.End()
		if !unmapped {
			t.Error("the memory is mapped after the last lease has ended")
		}
	})
}
