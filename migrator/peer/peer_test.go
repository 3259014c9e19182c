package peer

import (
	"context"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// got is a received envelope with its sender.
type got struct {
	from policies.ReplicaID
	*api.Envelope
}

// node is a network with a server of its own.
type node struct {
	*Network
	address string
	came    chan got
	gone    chan policies.ReplicaID
	back    chan policies.ReplicaID
	stop    func() // stops everything; idempotent
}

// serveHTTP serves a handler as the front end's peer server does.
func serveHTTP(l net.Listener, h http.Handler) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: h, Protocols: &protocols, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	go s.Serve(l)
	return s
}

// startNode creates a node on a listener and runs it.
func startNode(t testing.TB, cfg Config, l net.Listener, address string) *node {
	t.Helper()
	n := &node{address: address, came: make(chan got, 1<<16), gone: make(chan policies.ReplicaID, 100), back: make(chan policies.ReplicaID, 100)}
	if cfg.Handle == nil {
		cfg.Handle = func(from policies.ReplicaID, e *api.Envelope) { n.came <- got{from, e} }
	}
	cfg.PeerGone = func(id policies.ReplicaID) { n.gone <- id }
	cfg.PeerBack = func(id policies.ReplicaID) { n.back <- id }
	var err error
	if n.Network, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	for running := false; !running; runtime.Gosched() {
		n.mu.Lock()
		running = n.ctx != nil
		n.mu.Unlock()
	}
	server := serveHTTP(l, n.Handler())
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		server.Close()
	})
	t.Cleanup(n.stop)
	return n
}

// startOnTCP starts a node on a loopback socket. It runs in real time: its envelopes wait in the queue
// as long as a busy host takes.
func startOnTCP(t testing.TB, cfg Config) *node {
	t.Helper()
	if cfg.PeerTimeout == 0 {
		cfg.PeerTimeout = time.Hour
	}
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	return startNode(t, cfg, l, l.Addr().String())
}

// setAllPeers gives each node the addresses of all nodes.
func setAllPeers(nodes ...*node) {
	all := make(map[policies.ReplicaID]string)
	for _, n := range nodes {
		all[n.cfg.Self] = n.address
	}
	for _, n := range nodes {
		n.SetPeers(all)
	}
}

func market(number uint64) *api.Envelope {
	return &api.Envelope{Body: &api.Envelope_Market{Market: &api.Market{Kind: 1, Seller: "a", Number: number}}}
}

// peerState is what a node knows of a peer.
type peerState struct {
	connected, watched, gone bool
	incoming, queued         int // open streams from it, and envelopes for it
	incarnation              uint64
	lastHeard                time.Time
}

// peer returns the state of one peer, the zero value for an unknown one.
func (n *node) peer(id policies.ReplicaID) peerState {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.peers[id]
	if p == nil {
		return peerState{}
	}
	return peerState{p.connected, p.watched, p.watched && p.gone, len(p.streams), len(p.queue), p.hello.GetIncarnation(), p.lastHeard}
}

func TestDelivers(t *testing.T) {
	a, b := startOnTCP(t, Config{Self: "a"}), startOnTCP(t, Config{Self: "b", Incarnation: 7})
	setAllPeers(a, b)
	const many = 1000
	for i := range uint64(many) {
		a.Send("b", market(i))
		b.Send("a", market(i))
	}
	for i := range uint64(many) {
		for _, n := range [...]*node{a, b} {
			g := <-n.came
			if g.GetMarket().GetNumber() != i || g.from == n.cfg.Self || g.GetTo() != string(n.cfg.Self) || g.GetFrom() != string(g.from) {
				t.Fatalf("envelope %d at %s: %v", i, n.cfg.Self, g.Envelope)
			}
		}
	}
	if p := a.peer("b"); !p.connected || p.incoming != 1 || p.incarnation != 7 {
		t.Errorf("the peer: %+v", p)
	}
}

// TestLargestRound sends envelopes of the size for which MaxEnvelope was chosen, and larger ones.
func TestLargestRound(t *testing.T) {
	a, b := startOnTCP(t, Config{Self: "a"}), startOnTCP(t, Config{Self: "b"})
	setAllPeers(a, b)
	const tokens, block, regions = 128 << 10, 16, 180
	worst := make([]uint32, tokens/block*regions)
	for i := range worst {
		worst[i] = ^uint32(0) - uint32(i)
	}
	round := &api.Transfer{Kind: 4, Ids: worst[:tokens], Blocks: worst[:tokens/block], Sums: worst}
	a.Send("b", &api.Envelope{Body: &api.Envelope_Transfer{Transfer: round}})
	if g := <-b.came; !proto.Equal(g.GetTransfer(), round) {
		t.Error("the round has changed on its way")
	}
	round.Sums = append(worst, worst...)
	a.Send("b", &api.Envelope{Body: &api.Envelope_Transfer{Transfer: round}})
	a.Send("b", market(1))
	if g := <-b.came; g.GetMarket() == nil {
		t.Error("an envelope above MaxEnvelope was sent")
	}
}

// TestSendNeverBlocks sends to a peer that accepts connections but never answers, and to one that
// does not exist.
func TestSendNeverBlocks(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	a := startOnTCP(t, Config{Self: "a", QueueSize: 10})
	a.SetPeers(map[policies.ReplicaID]string{"mute": l.Addr().String(), "none": "127.0.0.1:1"})
	for _, id := range [...]policies.ReplicaID{"mute", "none"} {
		for i := range uint64(100) {
			a.Send(id, market(i))
		}
		if p := a.peer(id); p.queued != 10 || p.connected {
			t.Errorf("%s: %+v", id, p)
		}
	}
}

// TestQueueDropsTheOldest fills a queue before the network runs.
func TestQueueDropsTheOldest(t *testing.T) {
	b := startOnTCP(t, Config{Self: "b"})
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	n := testkit.Must(New(Config{Self: "a", QueueSize: 3, PeerTimeout: time.Hour, Handle: func(policies.ReplicaID, *api.Envelope) {}}))
	n.SetPeers(map[policies.ReplicaID]string{"b": b.address})
	for i := range uint64(10) {
		n.Send("b", market(i))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	for i := range uint64(3) {
		if g := <-b.came; g.GetMarket().GetNumber() != 7+i {
			t.Errorf("got %d, want %d", g.GetMarket().GetNumber(), 7+i)
		}
	}
	cancel()
	<-done
	l.Close()
}

// openRawStream opens a stream without a Network.
func openRawStream(t *testing.T, address string) api.Peer_ExchangeClient {
	t.Helper()
	conn := testkit.Must(grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials())))
	t.Cleanup(func() { conn.Close() })
	s := testkit.Must(api.NewPeerClient(conn).Exchange(t.Context()))
	return s
}

func hello(from, to string, incarnation uint64) *api.Envelope {
	return &api.Envelope{From: from, To: to, Body: &api.Envelope_Hello{Hello: &api.Hello{TransferMin: 1, TransferMax: 9, Incarnation: incarnation}}}
}

func TestWrongHello(t *testing.T) {
	a := startOnTCP(t, Config{Self: "a"})
	for _, first := range [...]*api.Envelope{hello("x", "b", 1), hello("", "a", 1), hello("a", "a", 1), market(1), {From: "x", To: "a"}} {
		s := openRawStream(t, a.address)
		s.Send(first)
		if _, err := s.Recv(); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%v is answered with %v", first, err)
		}
	}
}

func TestWrongEnvelopes(t *testing.T) {
	a := startOnTCP(t, Config{Self: "a"})
	s := openRawStream(t, a.address)
	s.Send(hello("x", "a", 1))
	if e, err := s.Recv(); err != nil || e.GetHello() == nil || e.GetFrom() != "a" || e.GetTo() != "x" {
		t.Fatalf("%v, %v", e, err)
	}
	good := func(number uint64) *api.Envelope {
		e := market(number)
		e.From, e.To = "x", "a"
		return e
	}
	forged, lost := good(1), good(2)
	forged.From, lost.To = "y", "b"
	s.Send(forged)
	s.Send(lost)
	s.Send(hello("x", "a", 1))
	// Version N+1 may send a body and a field that this version does not have.
	unknown := &api.Envelope{From: "x", To: "a"}
	unknown.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 99, protowire.BytesType), []byte("new")))
	s.Send(unknown)
	newer := good(3)
	newer.GetMarket().Kind = 200
	newer.GetMarket().ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 98, protowire.VarintType), 5))
	s.Send(newer)
	s.Send(good(4))
	for _, want := range [...]uint64{3, 4} {
		if g := <-a.came; g.from != "x" || g.GetMarket().GetNumber() != want {
			t.Errorf("got %v, want %d", g.Envelope, want)
		}
	}
	// An oversize envelope ends the stream; the next stream works.
	big := &api.Envelope{From: "x", To: "a", Body: &api.Envelope_Transfer{Transfer: &api.Transfer{Ids: make([]uint32, MaxEnvelope+1)}}}
	s.Send(big)
	if _, err := s.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("an oversize envelope ends its stream with %v", err)
	}
	s = openRawStream(t, a.address)
	s.Send(hello("x", "a", 1))
	s.Send(good(5))
	if g := <-a.came; g.GetMarket().GetNumber() != 5 {
		t.Errorf("got %v, want 5", g.Envelope)
	}
}

// TestOlderPeer receives a Hello of a version that sends only its name.
func TestOlderPeer(t *testing.T) {
	a := startOnTCP(t, Config{Self: "a"})
	s := openRawStream(t, a.address)
	s.Send(&api.Envelope{From: "x", To: "a", Body: &api.Envelope_Hello{Hello: &api.Hello{}}})
	e := market(1)
	e.From, e.To = "x", "a"
	s.Send(e)
	if g := <-a.came; g.from != "x" {
		t.Errorf("from %s", g.from)
	}
}

// TestLaterStreamTakesOver opens two streams of one process.
func TestLaterStreamTakesOver(t *testing.T) {
	a := startOnTCP(t, Config{Self: "a"})
	first := openRawStream(t, a.address)
	first.Send(hello("x", "a", 1))
	first.Recv()
	second := openRawStream(t, a.address)
	second.Send(hello("x", "a", 1))
	second.Recv()
	if _, err := first.Recv(); status.Code(err) != codes.Aborted {
		t.Errorf("the first stream ends with %v", err)
	}
	// Another process of the same replica has a stream of its own.
	third := openRawStream(t, a.address)
	third.Send(hello("x", "a", 2))
	third.Recv()
	for _, s := range [...]api.Peer_ExchangeClient{second, third} {
		e := market(1)
		e.From, e.To = "x", "a"
		s.Send(e)
		<-a.came
	}
	if p := a.peer("x"); p.incoming != 2 || p.incarnation != 2 {
		t.Errorf("%+v", p)
	}
}

func TestConfig(t *testing.T) {
	good := Config{Self: "a", Handle: func(policies.ReplicaID, *api.Envelope) {}}
	testkit.Must(New(good))
	for field, change := range map[string]func(*Config){
		"Self": func(c *Config) { c.Self = "" }, "Handle": func(c *Config) { c.Handle = nil }, "QueueSize": func(c *Config) { c.QueueSize = -1 },
		"HeartbeatInterval": func(c *Config) { c.HeartbeatInterval = -1 }, "PeerTimeout": func(c *Config) { c.PeerTimeout = time.Millisecond }, "IdleTimeout": func(c *Config) { c.IdleTimeout = -1 },
	} {
		c := good
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("a bad %s: %v", field, err)
		}
	}
}
