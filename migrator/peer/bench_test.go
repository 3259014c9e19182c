package peer

import (
	"sync/atomic"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
)

// BenchmarkRoundTrip sends one envelope there and one back, over loopback TCP.
func BenchmarkRoundTrip(b *testing.B) {
	x := startOnTCP(b, Config{Self: "x"})
	var y *node
	ready := make(chan struct{})
	y = startOnTCP(b, Config{Self: "y", Handle: func(from policies.ReplicaID, e *api.Envelope) {
		<-ready
		y.Send(from, e)
	}})
	close(ready)
	setAllPeers(x, y)
	x.Send("y", market(1))
	<-x.came
	for b.Loop() {
		x.Send("y", market(1))
		<-x.came
	}
}

// BenchmarkOneWay sends a stream of envelopes, as fast as the receiver handles them.
func BenchmarkOneWay(b *testing.B) {
	var taken atomic.Int64
	free := make(chan struct{}, 512) // well below the queue: nothing is dropped
	x := startOnTCP(b, Config{Self: "x"})
	y := startOnTCP(b, Config{Self: "y", Handle: func(policies.ReplicaID, *api.Envelope) {
		taken.Add(1)
		<-free
	}})
	setAllPeers(x, y)
	for b.Loop() {
		free <- struct{}{}
		x.Send("y", market(1))
	}
	for len(free) > 0 {
		free <- struct{}{}
		<-free
	}
}
