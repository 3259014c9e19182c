package market

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/partition"
	xds "github.com/cascadeinfer/cascade/xds/api"
)

// discard is an Executor and a Network that records envelopes.
type discard struct{ sent []*api.Envelope }

func (n *discard) Execute(bidask.Action)                      {}
func (n *discard) Send(_ policies.ReplicaID, e *api.Envelope) { n.sent = append(n.sent, e) }

func good(residents ...frontend.LocalLeg) Config {
	n := &discard{}
	return Config{
		Self: "a", Executor: n, Network: n, Load: func() policies.Load { return policies.Load{} },
		Residents: func() []frontend.LocalLeg { return residents },
	}
}

// newTwoStages returns the market of a replica a, which holds a request that has outgrown its
// stage; b is the next stage.
func newTwoStages(t *testing.T, change func(*Config)) (*Market, *discard) {
	t.Helper()
	c := good(frontend.LocalLeg{Request: policies.Request{ID: "q", Input: 5000, Output: 1}, Last: time.Now()})
	network := c.Network.(*discard)
	change(&c)
	m := testkit.Must(New(c))
	m.SetView(View{
		Plan:  policies.Plan{Model: "m", Stages: []policies.Stage{{High: 100, Replicas: []policies.ReplicaID{"a"}}, {Low: 100, High: policies.Unbounded, Replicas: []policies.ReplicaID{"b"}}}},
		Peers: []policies.Replica{{ID: "b", Peer: "b"}},
	})
	return m, network
}

func TestConfig(t *testing.T) {
	testkit.Must(New(good()))
	for field, change := range map[string]func(*Config){
		"Self": func(c *Config) { c.Self = "" }, "Executor": func(c *Config) { c.Executor = nil }, "Network": func(c *Config) { c.Network = nil },
		"Residents": func(c *Config) { c.Residents = nil }, "Load": func(c *Config) { c.Load = nil }, "Capacity": func(c *Config) { c.Capacity = -1 },
		"ScanInterval": func(c *Config) { c.ScanInterval = -1 }, "QoE": func(c *Config) { c.Refiner = partition.PaperRefiner{} },
		"MaxConcurrentSends": func(c *Config) { c.Machine.MaxConcurrentSends = -1 }, "SpillPercent": func(c *Config) { c.SpillPercent = -1 },
	} {
		c := good()
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("a bad %s: %v", field, err)
		}
	}
}

func TestWire(t *testing.T) {
	for _, msg := range []bidask.Message{
		{Kind: bidask.Ask, From: "a", To: "b", Deal: bidask.Deal{Seller: "a", Number: 1 << 50}, Migration: policies.Migration{Request: "a/7", Length: 9000, Cause: policies.Spill}, Load: 12},
		{Kind: bidask.Bid, From: "a", To: "b", Deal: bidask.Deal{Seller: "b", Number: 1}, Load: 5, Start: 5000},
		{Kind: bidask.Drop, From: "a", To: "b", Deal: bidask.Deal{Seller: "b"}},
	} {
		got, ok := decode("a", "b", encode(msg).GetMarket())
		if !ok || got != msg {
			t.Errorf("%+v, %v; want %+v", got, ok, msg)
		}
	}
	for _, bad := range []*api.Market{
		nil, {Seller: "a"}, {Kind: uint32(bidask.Drop) + 1, Seller: "a"}, {Kind: 257, Seller: "a"}, {Kind: 2}, {Kind: 2, Seller: "a", Load: -1}, {Kind: 2, Seller: "a", StartMicros: -1},
		{Kind: 1, Seller: "a"}, {Kind: 1, Seller: "a", Handover: &api.Handover{Request: "q", Length: -1}}, {Kind: 1, Seller: "a", Handover: &api.Handover{Request: "q", Cause: 256}},
	} {
		if msg, ok := decode("a", "b", bad); ok {
			t.Errorf("%v is read as %+v", bad, msg)
		}
	}
}

// FuzzWire shows that decode either rejects a peer's message or returns it unchanged.
func FuzzWire(f *testing.F) {
	for k := range uint32(bidask.Drop) + 2 {
		b, _ := proto.Marshal(&api.Market{Kind: k, Seller: "a", Number: 3, Load: 4, StartMicros: 5, Handover: &api.Handover{Request: "q", Length: 6, Cause: 1}})
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m api.Market
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		msg, ok := decode("x", "y", &m)
		if !ok {
			return
		}
		again, ok := decode("x", "y", encode(msg).GetMarket())
		if !ok || again != msg || msg.Load < 0 || msg.Migration.Length < 0 || msg.Start < 0 {
			t.Errorf("%+v, then %+v", msg, again)
		}
	})
}

func TestIgnores(t *testing.T) {
	m := testkit.Must(New(good()))
	m.Receive("b", &api.Market{Kind: 99, Seller: "b"})
	m.ReceiveSummary("b", &api.Summary{Held: -1})
	m.ReceiveSummary("b", &api.Summary{Held: 1 << 62})
	for i := range uint64(maxMailbox + 10) {
		m.Receive("b", &api.Market{Kind: uint32(bidask.Busy), Seller: "b", Number: i})
	}
	// The market never drops results of the Executor.
	m.Notify(bidask.Event{Kind: bidask.TransferFailed, Deal: bidask.Deal{Seller: "a"}})
	if got := m.Status().Ignored; got != 13 || len(m.mailbox) != maxMailbox+1 {
		t.Errorf("%d ignored, %d wait", got, len(m.mailbox))
	}
	m.drainMailbox()
	if s := m.Status(); s.Received[bidask.Busy] != maxMailbox || len(m.mailbox) != 0 {
		t.Errorf("%+v", s)
	}
}

// TestProposal requests a proposal with a load far to one side of the boundary.
func TestProposal(t *testing.T) {
	var residents []frontend.LocalLeg
	for i := range policies.Tokens(20) {
		residents = append(residents, frontend.LocalLeg{Request: policies.Request{ID: "q", Input: 100, Output: 50 * i}})
	}
	c := good(residents...)
	c.Refiner, c.QoE = partition.PaperRefiner{}, policies.QoE{D0: 0.01, D1: 1e-4, D4: 1e-7}
	m := testkit.Must(New(c))
	ask := func(r *xds.Refine) *xds.Proposal {
		m.SetView(View{Refine: r})
		m.updateProposal()
		return m.Proposal()
	}
	if p := ask(nil); p != nil {
		t.Errorf("unasked: %v", p)
	}
	next := []*xds.Batch{{N: 2, SumInput: 200, SumLength: 4000}, {}, {N: -1}}
	r := &xds.Refine{Epoch: 7, Boundary: 1500, Peers: 1, Successors: 1, Next: next}
	if p := ask(r); p.GetEpoch() != 7 || p.GetLow() != 0 || p.GetBoundary() >= 1500 || p.GetBoundary() <= 0 {
		t.Errorf("a crowded stage gives none away: %v", p)
	}
	// Fewer than five requests: the boundary stays.
	c.Residents = func() []frontend.LocalLeg { return residents[:2] }
	m, _ = New(c)
	if p := ask(r); p.GetBoundary() != 1500 {
		t.Errorf("a boundary moves for %d requests: %v", 2, p)
	}
	for _, bad := range []*xds.Refine{
		{Boundary: 0, Peers: 1, Successors: 1}, {Boundary: 5, Low: 5, Peers: 1, Successors: 1}, {Boundary: 5, High: 5, Peers: 1, Successors: 1},
		{Boundary: 5, Successors: 1}, {Boundary: 5, Peers: 1}, {Boundary: 5, Low: -1, Peers: 1, Successors: 1},
	} {
		if p := ask(bad); p != nil {
			t.Errorf("%v is answered with %v", bad, p)
		}
	}
}

// TestBuysNothing checks that a replica buys nothing while its engine is away, when it sells nothing either, and while
// no KV can be written to the engine's memory, when it goes on selling.
func TestBuysNothing(t *testing.T) {
	no := func() bool { return false }
	for offers, change := range []func(*Config){func(c *Config) { c.Ready = no }, func(c *Config) { c.CanReceive = no }} {
		m, network := newTwoStages(t, func(c *Config) {
			c.Capacity = 1 << 20
			change(c)
		})
		m.scan()
		if s := m.Status(); s.Offered[policies.Growth] != uint64(offers) || s.Residents != 1 {
			t.Errorf("offers %+v, want %d", s, offers)
		}
		asked := len(network.sent)
		m.Receive("b", &api.Market{Kind: uint32(bidask.Ask), Seller: "b", Handover: &api.Handover{Request: "p", Length: 5, Cause: 1}})
		m.drainMailbox()
		m.sendSummaries()
		sent := network.sent[asked:]
		if len(sent) != 2 || sent[0].GetMarket().GetKind() != uint32(bidask.NoBid) || sent[1].GetSummary().GetDraining() != (offers == 0) {
			t.Errorf("with %d offers it has sent %v", offers, sent)
		}
	}
}

// recorder is an Executor that records its actions.
type recorder struct{ done []bidask.Action }

func (r *recorder) Execute(a bidask.Action) { r.done = append(r.done, a) }

// TestGivesUp checks that a market whose Run ends leaves no reservation and no promise behind,
// because its process may outlive it.
func TestGivesUp(t *testing.T) {
	executor := &recorder{}
	m, network := newTwoStages(t, func(c *Config) { c.Executor, c.Capacity = executor, 10_000 })
	m.Receive("b", &api.Market{Kind: uint32(bidask.Confirm), Seller: "b", Number: 7, Handover: &api.Handover{Request: "p", Length: 5, Cause: 1}})
	m.scan()
	m.drainMailbox()
	m.Notify(bidask.Event{Kind: bidask.Reserved, Deal: executor.done[0].Deal})
	if n, _, _ := m.trader.Deals(); n != 1 {
		t.Fatalf("%d sales", n)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	testkit.NoError(t, m.Run(ctx))
	if n := len(executor.done); executor.done[0].Kind != bidask.Reserve || executor.done[n-1].Kind != bidask.Release {
		t.Errorf("the executor got %+v", executor.done)
	}
	if last := network.sent[len(network.sent)-1].GetMarket(); last.GetKind() != uint32(bidask.Drop) || last.GetNumber() != 7 {
		t.Errorf("the last message to the seller is %v", last)
	}
	if n, _, _ := m.trader.Deals(); n != 0 || m.trader.Incoming() != 0 {
		t.Errorf("%d sales and %d reserved tokens are left", n, m.trader.Incoming())
	}
}
