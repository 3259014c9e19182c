package transporttest

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

func testTickets(t *testing.T, b *suite) {
	b.start(wide, narrow)
	before := slices.Clone(b.Target.Read())

	offer := b.Export(b.Grant())
	wrong := offer
	wrong.Ticket[0] ^= 1
	b.requireRefused("a wrong ticket", Receiver, wrong)
	wrong.Ticket = [transport.TicketSize]byte{}
	b.requireRefused("no ticket", Receiver, wrong)
	b.requireRefused("another receiver's ticket", "another-receiver", offer)
	b.requireRefused("a ticket without a receiver", "", offer)

	p, err := b.OpenOffer(Receiver, offer)
	testkit.NoError(t, err)
	b.requireRefused("a ticket in use", Receiver, offer)
	p.Close()
	b.requireRefused("a used ticket", Receiver, offer)

	g := b.Grant()
	first, second, other := b.Export(g), b.Export(g), b.Export(b.Grant())
	if first.Ticket == second.Ticket {
		t.Error("two offers have one ticket")
	}
	b.Source.Transport.Revoke(g.Migration)
	b.Source.Transport.Revoke("m/unknown")
	b.requireRefused("a revoked ticket", Receiver, first)
	b.requireRefused("another revoked ticket of the migration", Receiver, second)
	p, err = b.OpenOffer(Receiver, other)
	if err != nil {
		t.Errorf("the ticket of a migration that was not revoked: %v", err)
	} else {
		p.Close()
	}

	foreign := b.Export(b.Grant())
	foreign.Transport = "another"
	if p, err := b.OpenOffer(Receiver, foreign); err == nil {
		p.Close()
		t.Error("an offer for another transport is accepted")
	}
	if !slices.Equal(before, b.Target.Read()) {
		t.Error("the memory changed without a pull")
	}
}

// testUnannounced pulls blocks that were not announced, or were announced for another migration
// only: the source sends none of them, and the announced ones it does.
func testUnannounced(t *testing.T, b *suite) {
	b.start(wide, narrow)
	if b.Source.Unbound {
		testkit.Skip(t, testkit.Unavailable{What: "over this transport, receivers read the pool themselves", Remedy: "choose another transport"})
	}
	before := slices.Clone(b.Target.Read())
	source := b.Source.Transport
	other := b.Grant()
	b.Export(other)
	g := b.Grant()
	offers := []transport.Offer{b.ExportUnannounced(g), b.ExportUnannounced(g), b.ExportUnannounced(g)}
	announceAll(b.Source, other.Migration)
	open := func(offer transport.Offer) transport.Puller {
		p := testkit.Must(b.OpenOffer(Receiver, offer))
		b.pullers = append(b.pullers, p)
		return p
	}
	if _, err := b.Pull(open(offers[0]), OrderedPlan(b.Source.Memory, 3, 0, 1)); err == nil {
		t.Error("a block is sent before any is announced")
	}
	source.Announce(g.Migration, []uint32{3, 5})
	source.Announce(g.Migration, []uint32{uint32(b.Source.Memory.Blocks), 1 << 31})
	if _, err := b.Pull(open(offers[1]), OrderedPlan(b.Source.Memory, 3, 0, 3)); err == nil {
		t.Error("a block is sent that lies between two that were announced")
	}
	if !slices.Equal(before, b.Target.Read()) {
		t.Error("the memory changed without a block that was announced")
	}
	p := open(offers[2])
	b.RequirePull(p, NewPlan(b.Source.Memory, 2, func(i int) (int, int) { return 3 + 2*i, i }))
	source.Announce(g.Migration, []uint32{4})
	b.RequirePull(p, OrderedPlan(b.Source.Memory, 3, 0, 3))
}

func testExpiry(t *testing.T, b *suite) {
	b.start(wide, narrow)
	g := b.Grant()
	g.Deadline = time.Now().Add(-time.Second)
	if _, err := b.Source.Transport.Export(g); err == nil {
		t.Error("Export of an expired grant succeeded")
	}
	// Two grants end soon, one of which is not redeemed before. If the machine is too
	// slow for that, the test tries again with longer grants.
	var offer transport.Offer
	var p transport.Puller
	for life := 300 * time.Millisecond; ; life *= 2 {
		export := func() (o transport.Offer) {
			g = b.Grant()
			g.Deadline = time.Now().Add(life)
			o, _ = b.Source.Transport.Export(g) // fails if the grant is over
			return o
		}
		var err error
		offer = export()
		if p, err = b.OpenOffer(Receiver, export()); err == nil {
			break
		}
		if life > patience {
			t.Fatal(err)
		}
	}
	defer p.Close()
	time.Sleep(time.Until(g.Deadline) + time.Millisecond)
	b.requireRefused("an expired ticket", Receiver, offer)
	var corrupt *transport.CorruptError
	if _, err := b.Pull(p, b.Plan(5, 1)); err == nil || errors.As(err, &corrupt) {
		t.Errorf("a pull after the grant's deadline: %v", err)
	}
}

func testDeadline(t *testing.T, b *suite) {
	b.start(wide, narrow)
	past, cancel := context.WithDeadline(b.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if p, err := b.Target.Transport.Open(past, Receiver, b.Export(b.Grant())); err == nil {
		p.Close()
		t.Error("Open after its deadline succeeded")
	} else if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Open after its deadline: %v", err)
	}
	puller := b.Open()
	defer puller.Close()
	if _, err := puller.Pull(past, b.Plan(5, 1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Pull after its deadline: %v", err)
	}
	requireUnchanged(t, "after a late pull", b.Target)
}

// testMemories checks that a closed memory stays mapped for its users, and cannot be used
// by new ones.
func testMemories(t *testing.T, b *suite) {
	b.start(wide, narrow)
	var unmapped atomic.Int32
	b.Source.Memory.Unmap = countCalls(b.Source.Memory.Unmap, &unmapped)
	b.Target.Memory.Unmap = countCalls(b.Target.Memory.Unmap, &unmapped)
	offer := b.Export(b.Grant())
	puller := b.Open()
	b.RequirePull(puller, b.Plan(5, 1))
	b.Source.Memory.Close()
	b.Target.Memory.Close()
	if n := unmapped.Load(); n != 0 {
		t.Errorf("%d memories were unmapped while a puller used them", n)
	}
	if p, err := b.OpenOffer(Receiver, offer); err == nil {
		p.Close()
		t.Error("Open without a local memory succeeded")
	}
	puller.Close()
	b.Stop()
	if n := unmapped.Load(); n != 2 {
		t.Errorf("%d of 2 memories are unmapped at the end", n)
	}
}

// countCalls returns a function that counts its calls and calls next.
func countCalls(next func(), n *atomic.Int32) func() {
	return func() {
		n.Add(1)
		if next != nil {
			next()
		}
	}
}
