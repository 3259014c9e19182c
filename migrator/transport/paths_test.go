package transport_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
	"github.com/cascadeinfer/cascade/policies"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// carrier is a transport with a name of its own.
type carrier struct {
	transport.Transport
	name   string
	broken error // of its probe
}

func (n carrier) Name() string                { return n.name }
func (n carrier) Probe(context.Context) error { return n.broken }
func (n carrier) Export(g transport.Grant) (transport.Offer, error) {
	o, err := n.Transport.Export(g)
	o.Transport = n.name
	return o, err
}
func (n carrier) Open(ctx context.Context, receiver policies.ReplicaID, o transport.Offer) (transport.Puller, error) {
	o.Transport = "memory"
	return n.Transport.Open(ctx, receiver, o)
}

// pool is an engine's memory of 4 blocks of 2 bytes.
type pool struct{ m *transport.Memory }

func (p *pool) Memory() (*transport.Memory, bool) { return p.m, p.m != nil }

func newPool(text string) *pool {
	return &pool{&transport.Memory{Layout: transport.Layout{Regions: []transport.Region{{Stride: 2, Bytes: 2}}, Blocks: 4}, Bytes: []byte(text)}}
}

// side is one replica with the transports "good" and "bad".
type side struct {
	*transport.Paths
	pool   *pool
	faults *transporttest.Faults // of "bad"
}

func newSide(t *testing.T, id policies.ReplicaID, n [2]*transporttest.Network, text string, broken error) side {
	t.Helper()
	s := side{pool: newPool(text), faults: &transporttest.Faults{}}
	var list []transport.Transport
	for i, name := range []string{"bad", "good"} {
		c := transporttest.MemoryConfig{Network: n[i], Name: string(id), Pool: s.pool}
		x := carrier{name: name}
		if name == "bad" {
			c.Faults, x.broken = s.faults, broken
		}
		memory := testkit.Must(transporttest.NewMemory(c))
		x.Transport = memory
		t.Cleanup(testkit.Run(t, memory.Run))
		list = append(list, x)
	}
	s.Paths = transport.NewPaths(transport.PathsConfig{Self: id, Transports: list, Pool: s.pool})
	t.Cleanup(testkit.Run(t, s.Run))
	working := 2
	if broken != nil {
		working = 1
	}
	testkit.WaitFor(t, "the transports run", func() bool {
		out := s.Export(transport.Grant{Migration: "first", Receiver: "r9", Deadline: time.Now().Add(time.Minute)})
		s.Revoke("first")
		return len(out) == working && out[working-1].Transport == "good"
	})
	return s
}

// offers exports blocks to r1.
func (s side) offers(blocks ...uint32) []transport.Offer {
	out := s.Export(transport.Grant{Migration: "m", Receiver: "r1", Deadline: time.Now().Add(time.Minute)})
	s.Announce("m", blocks)
	return out
}

// TestPullFallsBack breaks the best transport when it opens and when it pulls: the next one carries the
// blocks, and is preferred afterwards.
func TestPullFallsBack(t *testing.T) {
	for name, fault := range map[string]transporttest.Fault{
		"open": {At: transporttest.AtOpen, Kind: transporttest.Cut}, "pull": {At: transporttest.AtPull, Kind: transporttest.Cut, Block: 1}, "none": {},
	} {
		n := [2]*transporttest.Network{{}, {}}
		a, b := newSide(t, "r0", n, "aabbccdd", nil), newSide(t, "r1", n, "........", nil)
		b.faults.Set(fault)
		p, err := b.Open(t.Context(), "r0", a.offers(1, 2), b.pool.m)
		testkit.NoError(t, err)
		plan := transport.Plan{Src: []uint32{1, 2}, Dst: []uint32{3, 0}, Sums: a.pool.m.Sums(nil, []uint32{1, 2})}
		testkit.Must(p.Pull(t.Context(), plan))
		want := "good"
		if name == "none" {
			want = "bad"
		}
		if p.Transport() != want || !bytes.Equal(b.pool.m.Bytes, []byte("cc....bb")) {
			t.Errorf("%s: by %s: %q", name, p.Transport(), b.pool.m.Bytes)
		}
		p.Close()
		if order := b.PullNames("r0"); order[0] != want {
			t.Errorf("%s: then %v", name, order)
		}
		b.Forget("r0")
		if order := b.PullNames("r0"); !slices.Equal(order, []string{"bad", "good"}) {
			t.Errorf("%s: with another peer of that name %v", name, order)
		}
		a.Revoke("m")
		if _, err := b.Open(t.Context(), "r0", nil, b.pool.m); err == nil || !strings.Contains(err.Error(), "no transport in common") {
			t.Errorf("%s: without offers: %v", name, err)
		}
	}
}

// TestPullBlocks: the blocks that arrive without their checksums, and they alone, are pulled again, up to three
// times; the pull is closed.
func TestPullBlocks(t *testing.T) {
	corrupt := func(nth, block int) transporttest.Fault {
		return transporttest.Fault{At: transporttest.AtPull, Nth: nth, Block: block, Kind: transporttest.Corrupt}
	}
	for name, x := range map[string]struct {
		faults  []transporttest.Fault
		corrupt int
		ok      bool
		by      string
	}{
		"intact":            {ok: true, by: "bad"},
		"one of two, twice": {faults: []transporttest.Fault{corrupt(0, 1), corrupt(1, 0)}, corrupt: 2, ok: true, by: "bad"},
		"three times":       {faults: []transporttest.Fault{corrupt(0, 1), corrupt(1, 0), corrupt(2, 0)}, corrupt: 3, by: "bad"},
		"cut, then intact":  {faults: []transporttest.Fault{{At: transporttest.AtPull, Kind: transporttest.Cut}}, ok: true, by: "good"},
	} {
		n := [2]*transporttest.Network{{}, {}}
		a, b := newSide(t, "r0", n, "aabbccdd", nil), newSide(t, "r1", n, "........", nil)
		b.faults.Set(x.faults...)
		plan := transport.Plan{Src: []uint32{1, 2}, Dst: []uint32{3, 0}, Sums: a.pool.m.Sums(nil, []uint32{1, 2})}
		out, err := b.PullBlocks(t.Context(), "r0", a.offers(1, 2), b.pool.m, plan)
		bad := (*transport.CorruptError)(nil)
		if (err == nil) != x.ok || !x.ok && !errors.As(err, &bad) || out != (transport.Outcome{x.by, x.corrupt}) {
			t.Errorf("%s: %+v, %v", name, out, err)
		}
		if x.ok && !bytes.Equal(b.pool.m.Bytes, []byte("cc....bb")) {
			t.Errorf("%s: %q", name, b.pool.m.Bytes)
		}
	}
	n := [2]*transporttest.Network{{}, {}}
	b := newSide(t, "r1", n, "........", nil)
	if out, err := b.PullBlocks(t.Context(), "r0", nil, b.pool.m, transport.Plan{}); err == nil || out != (transport.Outcome{}) {
		t.Errorf("without offers: %+v, %v", out, err)
	}
}

// TestRevoked: what was revoked cannot be pulled.
func TestRevoked(t *testing.T) {
	n := [2]*transporttest.Network{{}, {}}
	a, b := newSide(t, "r0", n, "aabbccdd", nil), newSide(t, "r1", n, "........", nil)
	offers := a.offers(1)
	a.Revoke("m")
	if _, err := b.Open(t.Context(), "r0", offers, b.pool.m); !errors.Is(err, transport.ErrRefused) {
		t.Error(err)
	}
}

// TestOtherMemory: a pull is for one memory, which the engine must still have.
func TestOtherMemory(t *testing.T) {
	n := [2]*transporttest.Network{{}, {}}
	a, b := newSide(t, "r0", n, "aabbccdd", nil), newSide(t, "r1", n, "........", nil)
	_, err := b.Open(t.Context(), "r0", a.offers(1), newPool("--------").m)
	testkit.WantError(t, err, "the engine was restarted")
}

// TestPullAfterFailure: a pull that has failed, here by its context, fails from then on, and says nothing new about
// the transport.
func TestPullAfterFailure(t *testing.T) {
	n := [2]*transporttest.Network{{}, {}}
	a, b := newSide(t, "r0", n, "aabbccdd", nil), newSide(t, "r1", n, "........", nil)
	p := testkit.Must(b.Open(t.Context(), "r0", a.offers(1), b.pool.m))
	defer p.Close()
	plan := transport.Plan{Src: []uint32{1}, Dst: []uint32{3}, Sums: a.pool.m.Sums(nil, []uint32{1})}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{ended, t.Context()} {
		if _, err := p.Pull(ctx, plan); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if order := b.PullNames("r0"); order[0] != "bad" {
		t.Errorf("%v after a pull that was cancelled", order)
	}
}

// TestBrokenTransports are neither offered nor used.
func TestBrokenTransports(t *testing.T) {
	n := [2]*transporttest.Network{{}, {}}
	a := newSide(t, "r0", n, "aabbccdd", errors.New("no cable"))
	testkit.WaitFor(t, "the probes", func() bool { return slices.Equal(a.ExportNames("r1"), []string{"good"}) })
	if got := a.PullNames("r1"); !slices.Equal(got, []string{"good"}) {
		t.Errorf("%v", got)
	}
	if o := a.offers(1); len(o) != 1 {
		t.Errorf("%d offers", len(o))
	}
}

// TestOffersOnTheWire converts offers, and rejects those that no transport made.
func TestOffersOnTheWire(t *testing.T) {
	o := transport.Offer{Transport: "tcp", Address: "x", Ticket: [transport.TicketSize]byte{1, 2}}
	got, err := transport.DecodeOffers("r0", transport.EncodeOffers([]transport.Offer{o}))
	o.Source = "r0"
	if err != nil || !slices.Equal(got, []transport.Offer{o}) {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = transport.DecodeOffers("r0", make([]*api.Offer, transport.MaxOffers+1))
	testkit.WantError(t, err, "17 offers: must be at most 16")
	_, err = transport.DecodeOffers("r0", []*api.Offer{{Ticket: make([]byte, 17)}})
	testkit.WantError(t, err, "ticket of 17 bytes: must have 16")
}
