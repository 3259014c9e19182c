package server

import (
	"cmp"
	"fmt"
	"time"
)

// Limits bound what one node may cost. The zero value of a field is its
// default, which suits a proxy of any size that this project has met; raise it
// for a fleet of bigger ones.
type Limits struct {
	// FirstRequest bounds the bytes of a stream's first request, which carries
	// the node message (61 KB from an Envoy) and the versions that the client
	// still has. 0 means 1 MiB. It must be below the gRPC server's own bound to
	// have an effect.
	FirstRequest int
	// Request bounds the bytes of every later request. 0 means 512 KiB: a
	// client of the older protocol lists all its names in each.
	Request int
	// NodeNames bounds the resource names that all streams of a node together
	// subscribe to at a time. 0 means 16384.
	NodeNames int
	// NodeBytes bounds the bytes of all names that a node subscribes to at a
	// time. 0 means 256 for each of NodeNames.
	NodeBytes int
	// Streams bounds the streams of a node at a time. 0 means 1024: an Envoy
	// whose listeners and clusters come from another control plane has one
	// stream per cluster.
	Streams int
	// Rate is how many requests a second a node may make beyond one reply to
	// each response, and Burst how many of them at once. 0 means 100, and those
	// of 20 s, at least 32: a node that reconnects sends requests on all its
	// streams at once, and an Envoy asks for all types.
	Rate, Burst int
	// Nodes bounds the nodes that are known at a time, including those that
	// left within the last minute. 0 means 16384.
	Nodes int
	// FirstRequestTimeout is how long a stream may be open without a request. 0
	// means 10 s.
	FirstRequestTimeout time.Duration
	// SendTimeout is how long a response may wait for a client that does not
	// read. 0 means 30 s.
	SendTimeout time.Duration
}

const (
	defaultFirstRequest        = 1 << 20
	defaultRequest             = 512 << 10
	defaultNodeNames           = 16 << 10
	defaultNameBytes           = 256
	defaultStreams             = 1 << 10
	defaultRate                = 100
	defaultBurstSeconds        = 20
	minDefaultBurst            = 32
	defaultNodes               = 16 << 10
	defaultFirstRequestTimeout = 10 * time.Second
	defaultSendTimeout         = 30 * time.Second
)

// complete fills in the defaults.
func (l Limits) complete() Limits {
	l.FirstRequest = cmp.Or(l.FirstRequest, defaultFirstRequest)
	l.Request = cmp.Or(l.Request, defaultRequest)
	l.NodeNames = cmp.Or(l.NodeNames, defaultNodeNames)
	l.NodeBytes = cmp.Or(l.NodeBytes, l.NodeNames*defaultNameBytes)
	l.Streams = cmp.Or(l.Streams, defaultStreams)
	l.Rate = cmp.Or(l.Rate, defaultRate)
	l.Burst = cmp.Or(l.Burst, max(minDefaultBurst, defaultBurstSeconds*l.Rate))
	l.Nodes = cmp.Or(l.Nodes, defaultNodes)
	l.FirstRequestTimeout = cmp.Or(l.FirstRequestTimeout, defaultFirstRequestTimeout)
	l.SendTimeout = cmp.Or(l.SendTimeout, defaultSendTimeout)
	return l
}

// validate rejects negative limits.
func (l Limits) validate() error {
	for _, n := range [...]int{l.FirstRequest, l.Request, l.NodeNames, l.NodeBytes, l.Streams, l.Rate, l.Burst, l.Nodes} {
		if n < 0 {
			return fmt.Errorf("limit %d: must not be negative", n)
		}
	}
	for _, d := range [...]time.Duration{l.FirstRequestTimeout, l.SendTimeout} {
		if d < 0 {
			return fmt.Errorf("limit %v: must not be negative", d)
		}
	}
	return nil
}
