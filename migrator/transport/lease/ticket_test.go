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
)

var t0 = time.Unix(1000, 0)

func newGrant(migration string) transport.Grant {
	return transport.Grant{Migration: migration, Epoch: 3, Receiver: "b", Deadline: t0.Add(time.Second)}
}

func newIssuer() *lease.Issuer {
	b := &lease.Issuer{}
	b.Open()
	return b
}

func issue(t *testing.T, b *lease.Issuer, move string) [transport.TicketSize]byte {
	t.Helper()
	secret := testkit.Must(b.Issue(newGrant(move), &transport.Memory{}, t0))
	return secret
}

func TestRedeemRefuses(t *testing.T) {
	refused := func(t *testing.T, b *lease.Issuer, secret [transport.TicketSize]byte, who string, now time.Time) {
		t.Helper()
		if _, err := b.Redeem(secret, "b", now); !errors.Is(err, transport.ErrRefused) {
			t.Errorf("%s ticket: %v", who, err)
		}
	}
	b := newIssuer()
	secret := issue(t, b, "a/1")
	wrong := secret
	wrong[7] ^= 1
	refused(t, b, wrong, "wrong", t0)
	refused(t, b, [transport.TicketSize]byte{}, "empty", t0)
	refused(t, b, secret, "expired", t0.Add(time.Second))
	if _, err := b.Redeem(secret, "c", t0); !errors.Is(err, transport.ErrRefused) {
		t.Errorf("another receiver's ticket: %v", err)
	}
	lease, err := b.Redeem(secret, "b", t0)
	testkit.NoError(t, err)
	refused(t, b, secret, "used", t0)
	lease.End()
	refused(t, b, secret, "ended", t0)

	gone := &transport.Memory{}
	if secret, err = b.Issue(newGrant("a/2"), gone, t0); err != nil {
		t.Fatal(err)
	}
	gone.Close()
	refused(t, b, secret, "closed memory's", t0)

	secret = issue(t, b, "a/3")
	b.Revoke("a/3")
	refused(t, b, secret, "revoked", t0)
	secret = issue(t, b, "a/4")
	b.Close()
	refused(t, b, secret, "closed issuer's", t0)
}

func TestIssueRefusesBadGrants(t *testing.T) {
	m := &transport.Memory{}
	if _, err := new(lease.Issuer).Issue(newGrant("a/1"), m, t0); err == nil {
		t.Error("an issuer that was never opened issues a ticket")
	}
	b := newIssuer()
	if _, err := b.Issue(transport.Grant{Receiver: "b", Deadline: t0.Add(1)}, m, t0); err == nil {
		t.Error("a grant without a migration is accepted")
	}
	if _, err := b.Issue(newGrant("a/1"), m, t0.Add(time.Second)); err == nil {
		t.Error("an expired grant is accepted")
	}
}

// TestGrantsAreBounded checks that MaxGrants bounds the grants in force, and that expired
// ones do not count.
func TestGrantsAreBounded(t *testing.T) {
	b := newIssuer()
	for i := range lease.MaxGrants {
		issue(t, b, fmt.Sprint("a/", i))
	}
	late := newGrant("a/late")
	if _, err := b.Issue(late, &transport.Memory{}, t0); err == nil {
		t.Error("more than MaxGrants grants are in force")
	}
	late.Deadline = t0.Add(time.Hour)
	if _, err := b.Issue(late, &transport.Memory{}, t0.Add(time.Second)); err != nil {
		t.Errorf("Issue after all grants have expired: %v", err)
	}
}

func TestRevokeWaitsForUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newIssuer()
		lease := testkit.Must(b.Redeem(issue(t, b, "a/1"), "b", t0))
		if !lease.Enter(t0) {
			t.Fatal("Enter of a new lease reports false")
		}
		revoked := false
		go func() { b.Revoke("a/1"); revoked = true }()
		<-lease.Done()
		synctest.Wait()
		if revoked {
			t.Error("Revoke returned while the lease had a user")
		}
		if lease.Enter(t0) {
			t.Error("Enter of a revoked lease reports true")
		}
		lease.Leave()
		synctest.Wait()
		if !revoked {
			t.Error("Revoke did not return after Leave")
		}
		lease.End()
	})
}

func TestDeadlineEndsALease(t *testing.T) {
	b := newIssuer()
	lease := testkit.Must(b.Redeem(issue(t, b, "a/1"), "b", t0))
	defer lease.End()
	if lease.Enter(t0.Add(time.Second)) {
		t.Error("Enter of an expired lease reports true")
	}
}

// TestLeaseHoldsItsMemory checks that a closed memory is unmapped when its last lease has
// ended.
func TestLeaseHoldsItsMemory(t *testing.T) {
	unmapped := false
	m := &transport.Memory{Unmap: func() { unmapped = true }}
	b := newIssuer()
	secret := testkit.Must(b.Issue(newGrant("a/1"), m, t0))
	lease := testkit.Must(b.Redeem(secret, "b", t0))
	m.Close()
	if unmapped {
		t.Error("the memory was unmapped before the lease ended")
	}
	lease.End()
	if !unmapped {
		t.Error("the memory is mapped after the last lease has ended")
	}
}
