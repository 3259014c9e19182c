package handofftest

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/kvport"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/tcp"
	"github.com/cascadeinfer/cascade/policies"
)

// Connectors are the migrators' sides of two engines' CascadeConnectors. Their KV travels over TCP.
type Connectors struct {
	Clients [2]*kvport.Client
	// FlipBytes is how many more transfers arrive with a wrong byte.
	FlipBytes atomic.Int64
	// BeforeFetch, if it is not nil, is called before a holder is asked for KV, on another goroutine than the test's; its error
	// fails the test. It is set before the first move.
	BeforeFetch func() error

	t testing.TB
}

// NewConnectors connects to the sockets in the engines' directories, until the test ends. Their
// offers last for a lease, 0 for the default.
func NewConnectors(t testing.TB, dirs [2]string, lease time.Duration, log *testkit.Log) *Connectors {
	c := &Connectors{t: t}
	for i, dir := range dirs {
		var set *transport.Paths
		c.Clients[i] = testkit.Must(kvport.New(kvport.Config{
			Self: replica(i), Dir: dir, Network: connectedTo{c, i}, Lease: lease, Paths: func() *transport.Paths { return set }, Logger: log.Logger(),
		}))
		carrier := testkit.Must(tcp.New(tcp.Config{Pool: c.Clients[i], Logger: log.Logger()}))
		set = transport.NewPaths(transport.PathsConfig{Self: replica(i), Transports: []transport.Transport{spoiling{carrier, c, t}}, Pool: c.Clients[i], Logger: log.Logger()})
		for _, run := range []func(context.Context) error{carrier.Run, c.Clients[i].Run, set.Run} {
			t.Cleanup(testkit.Run(t, run))
		}
	}
	for _, client := range c.Clients {
		testkit.WaitFor(t, "the engine's connector is available", func() bool { _, ok := client.Memory(); return ok })
	}
	return c
}

// Edit makes a front end use the connector of its engine.
func (c *Connectors) Edit(f *frontend.Config) {
	i := 0
	if f.Replica == replica(1) {
		i = 1
	}
	f.KVConnector = c.Clients[i].KVConnector
}

// connectedTo is the network of one of two migrators.
type connectedTo struct {
	all  *Connectors
	self int
}

// FetchKV implements kvport.Network.
func (n connectedTo) FetchKV(ctx context.Context, to policies.ReplicaID, q *api.FetchKVRequest) (*api.FetchKVAnswer, error) {
	if to != replica(1-n.self) {
		return nil, fmt.Errorf("no replica %s", to)
	}
	if n.all.BeforeFetch != nil {
		if err := n.all.BeforeFetch(); err != nil {
			n.all.t.Error(err)
			return nil, err
		}
	}
	answers, ended := make(chan *api.FetchKVAnswer, 1), make(chan error, 1)
	go func() {
		ended <- n.all.Clients[1-n.self].Serve(ctx, replica(n.self), q, func(a *api.FetchKVAnswer) error { answers <- a; return nil })
	}()
	select {
	case a := <-answers:
		return a, nil
	case err := <-ended:
		return nil, fmt.Errorf("%s: %w", to, err)
	}
}

// spoiling is a transport, some of whose transfers arrive with a wrong byte.
type spoiling struct {
	transport.Transport
	all *Connectors
	t   testing.TB
}

// Open implements transport.Transport. If the transfer is to be spoilt, it leads through a proxy.
func (s spoiling) Open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (transport.Puller, error) {
	offer.Address = s.proxy(offer.Address)
	return s.Transport.Open(ctx, receiver, offer)
}

// proxy returns the address of a proxy for one connection to a source.
func (s spoiling) proxy(source string) string {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	go func() {
		defer l.Close()
		receiver, err := l.Accept()
		if err != nil {
			return
		}
		defer receiver.Close()
		out, err := net.Dial("tcp", source)
		if err != nil {
			return
		}
		defer out.Close()
		go func() {
			defer out.Close()
			copyBytes(out, receiver, nil)
		}()
		copyBytes(receiver, out, func(b []byte) {
			// The answers before the blocks are short, a block is not.
			if len(b) > 8<<10 && s.all.FlipBytes.Add(-1) >= 0 {
				b[len(b)/2] ^= 1
			}
		})
	}()
	s.t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// copyBytes copies until one end is closed; edit may change the bytes.
func copyBytes(to, from net.Conn, edit func(b []byte)) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			if edit != nil {
				edit(b[:n])
			}
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
