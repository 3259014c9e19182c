package peer

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
)

// requireNoneGone waits for d, and requires that no node reports a peer as gone.
func requireNoneGone(t *testing.T, d time.Duration, nodes ...*node) {
	t.Helper()
	time.Sleep(d)
	for _, n := range nodes {
		if len(n.gone) != 0 {
			t.Fatalf("%s (incarnation %d) reports that %s is gone", n.cfg.Self, n.cfg.Incarnation, <-n.gone)
		}
	}
}

// receivedNumbers receives the envelopes that have arrived so far, and returns their numbers.
func receivedNumbers(n *node) map[uint64]int {
	took := make(map[uint64]int)
	for len(n.came) > 0 {
		g := <-n.came
		took[g.GetMarket().GetNumber()]++
	}
	return took
}

// TestUpgrade has a peer c and the first process of replica b, which watch each other. b's next
// process starts at the address of the first: new connections reach the next process, open ones
// stay with the first.
func TestUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newNetwork(t)
		c, first := w.node(t, "c", "c:1", 1), w.node(t, "b", "b:1", 1)
		setAllPeers(c, first)
		c.Watch([]policies.ReplicaID{"b"})
		first.Watch([]policies.ReplicaID{"c"})
		time.Sleep(3 * time.Second)
		const many = 3000
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for i := range uint64(many) {
				c.Send("b", market(i))
				time.Sleep(time.Millisecond)
			}
		}()
		time.Sleep(time.Second)
		next := w.node(t, "b", "b:1", 2)
		setAllPeers(next, c)
		next.Watch([]policies.ReplicaID{"c"})
		time.Sleep(10 * time.Millisecond)
		if p := c.peer("b"); !p.connected || first.peer("c").incoming != 0 || next.peer("c").incoming != 1 {
			t.Errorf("the next process was not reached at once: %+v", p)
		}
		<-sent
		// Each envelope has arrived once, at one of the two processes.
		requireNoneGone(t, 3*defaultSilence, c, first, next)
		early, late := receivedNumbers(first), receivedNumbers(next)
		all := maps.Clone(early)
		for i, times := range late {
			all[i] += times
		}
		if len(all) != many || len(early) == 0 || len(late) == 0 || slices.Max(slices.Collect(maps.Values(all))) != 1 {
			t.Errorf("of %d sent, %d came to the first process, %d to the next, %d in all", many, len(early), len(late), len(all))
		}
		if a, b := slices.Max(slices.Collect(maps.Keys(early))), slices.Min(slices.Collect(maps.Keys(late))); a > b {
			t.Errorf("%d went to the first process after %d had gone to the next", a, b)
		}
		if p, q := c.peer("b"), first.peer("c"); p.incoming != 2 || p.incarnation != 2 || !p.connected || q.incoming != 0 || time.Since(q.lastHeard) > defaultInterval {
			t.Errorf("at the peer: %+v; at the first process: %+v", p, q)
		}
		// The peer handles the envelopes of both.
		first.Send("c", market(1))
		<-c.came
		next.Send("c", market(2))
		<-c.came

		first.stop()
		requireNoneGone(t, 3*defaultSilence, c, next)
		w.kill(next)
		if took := waitForGone(t, c, 10*time.Second); took > 4*minReconnectDelay {
			t.Errorf("gone after %v", took)
		}
		requireNoneGone(t, 3*defaultSilence, c)
	})
}

// muteServer is a process that sends Hello, and then reads nothing.
type muteServer struct{ api.UnimplementedPeerServer }

func (muteServer) Exchange(stream api.Peer_ExchangeServer) error {
	e, err := stream.Recv()
	if err != nil {
		return err
	}
	stream.Send(hello(e.GetTo(), e.GetFrom(), 1))
	<-stream.Context().Done()
	return nil
}

// countingServer is a process that counts what it reads after Hello, and says nothing.
type countingServer struct {
	api.UnimplementedPeerServer
	read atomic.Int64
}

func (c *countingServer) Exchange(stream api.Peer_ExchangeServer) error {
	e, err := stream.Recv()
	if err != nil {
		return err
	}
	stream.Send(hello(e.GetTo(), e.GetFrom(), 1))
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		c.read.Add(1)
	}
}

// serve runs a process at an address.
func (w *network) serve(t *testing.T, address string, p api.PeerServer) {
	l := bufconn.Listen(1 << 16)
	w.setListener(address, l)
	s := grpc.NewServer()
	api.RegisterPeerServer(s, p)
	go s.Serve(l) // unlike ServeHTTP, it reads no more than the handler does
	t.Cleanup(s.Stop)
}

// openStream opens a stream to an address without a Network.
func (w *network) openStream(t *testing.T, from, to string) api.Peer_ExchangeClient {
	t.Helper()
	dial := w.dialer(from)
	conn, err := grpc.NewClient("passthrough:///"+to, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, address) }))
	testkit.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	s := testkit.Must(api.NewPeerClient(conn).Exchange(t.Context()))
	return s
}

// TestRestartOfOneThatReadsNothing has envelopes in transit to a first process that does not read
// when the next process starts.
func TestRestartOfOneThatReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newNetwork(t)
		c := w.node(t, "c", "c:1", 1)
		w.serve(t, "b:1", muteServer{})
		c.SetPeers(map[policies.ReplicaID]string{"b": "b:1"})
		c.Watch([]policies.ReplicaID{"b"})
		for range 10 {
			c.Send("b", &api.Envelope{Body: &api.Envelope_Transfer{Transfer: &api.Transfer{Ids: make([]uint32, 1<<18)}}})
		}
		time.Sleep(defaultInterval)
		if c.peer("b").queued == 0 {
			t.Error("nothing is stuck")
		}
		next := w.node(t, "b", "b:1", 2)
		setAllPeers(next, c)
		next.Send("c", market(1))
		time.Sleep(defaultSilence/2 + 10*time.Millisecond)
		if len(c.gone) != 1 || c.peer("b").gone || next.peer("c").incoming != 1 {
			t.Errorf("reported %d times; %+v", len(c.gone), c.peer("b"))
		}
		c.Send("b", market(2))
		for (<-next.came).GetMarket().GetNumber() != 2 {
		}
	})
}

// TestNothingSentIsLost has a first process that is still handling envelopes when the next process
// starts.
func TestNothingSentIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newNetwork(t)
		c := w.node(t, "c", "c:1", 1)
		l, took := bufconn.Listen(1<<16), make(chan uint64, 1000)
		w.setListener("b:1", l)
		first := startNode(t, Config{Self: "b", Incarnation: 1, Dial: w.dialer("b:1"), Handle: func(_ policies.ReplicaID, e *api.Envelope) {
			time.Sleep(time.Millisecond)
			took <- e.GetMarket().GetNumber()
		}}, l, "b:1")
		setAllPeers(c, first)
		for i := range uint64(cap(took)) {
			c.Send("b", market(i))
		}
		time.Sleep(100 * time.Millisecond)
		next := w.node(t, "b", "b:1", 2)
		setAllPeers(next, c)
		next.Send("c", market(1))
		<-c.came
		c.Send("b", market(5000))
		<-next.came // while the first process is still handling one
		if n := len(took); n > cap(took)/2 {
			t.Errorf("%d were handled before the next process was reached", n)
		}
		time.Sleep(2 * time.Second)
		if len(took) != cap(took) || len(next.came) != 0 {
			t.Errorf("%d came to the first process, %d more to the next, of %d", len(took), len(next.came), cap(took))
		}
	})
}

// TestAnswersNeedNoStream sends Heartbeats to a network that knows no addresses.
func TestAnswersNeedNoStream(t *testing.T) {
	a := startOnTCP(t, Config{Self: "a"})
	s := openRawStream(t, a.address)
	s.Send(hello("x", "a", 1))
	if e, err := s.Recv(); err != nil || e.GetHello() == nil {
		t.Fatalf("%v, %v", e, err)
	}
	for i := range 3 {
		s.Send(&api.Envelope{From: "x", To: "a", Body: &api.Envelope_Heartbeat{Heartbeat: &api.Heartbeat{}}})
		if e, err := s.Recv(); err != nil || e.GetFrom() != "a" || e.GetTo() != "x" || e.GetHeartbeat() == nil {
			t.Fatalf("Heartbeat %d is answered with %v, %v", i, e, err)
		}
	}
}

// TestStopsThoughNothingIsRead checks that Run ends although a peer does not read.
func TestStopsThoughNothingIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newNetwork(t)
		a := w.node(t, "a", "a:1", 1)
		s := w.openStream(t, "x:1", "a:1")
		long := string(make([]byte, 1<<20)) // more than the flow control allows
		s.Send(hello(long, "a", 1))
		time.Sleep(time.Second)
		since := time.Now()
		a.stop()
		if took := time.Since(since); took > 2*shutdownWriteTimeout {
			t.Errorf("stopped after %v", took)
		}
	})
}
