package proxy

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// DefaultDrainTimeout is the default of Config.DrainTimeout.
const DefaultDrainTimeout = 30 * time.Second

// DefaultBodyMemory is the default of Config.BodyMemory.
const DefaultBodyMemory = 512 << 20

// Config is what a Proxy needs.
type Config struct {
	// Client says how to reach the control plane and under which NodeID. Its Watcher and its
	// OnStream are the proxy's.
	Client routing.Config
	// Listener is served instead of the plan's address; it is closed when Run ends.
	Listener net.Listener
	// Listen opens the plan's address; nil means net.Listen. Calls do not overlap.
	Listen func(network, address string) (net.Listener, error)
	// Admit, unless it is nil, is called for every new request, which is refused on an
	// error. It must not block.
	Admit func() error
	// Problems returns what this process lacks or will lack soon, for the load reports to the control
	// plane; nil reports nothing.
	Problems func() []loadreport.Problem
	// WrapListener wraps the listener before it is served; nil does not.
	WrapListener func(net.Listener) net.Listener
	// TLS is used if the plan asks for TLS with clients; it holds the certificate. If it is nil,
	// such a plan is not served.
	TLS *tls.Config
	// ReplicaTLS returns the configuration of connections to a replica if the plan asks for TLS: the proxy's
	// certificate, and how the replica's is verified. nil: requests fail then.
	ReplicaTLS func(address string) *tls.Config
	// DrainTimeout is how long streams may continue after Run's context has ended; default
	// DefaultDrainTimeout.
	DrainTimeout time.Duration
	// BodyMemory bounds the memory of all request bodies, and of all answers whose clients do not
	// read, together, in bytes; default DefaultBodyMemory. Beyond it a body that must be read to be
	// routed is refused, any other one is passed on but can no longer be sent again to another
	// endpoint, and an answer is cut unless its client reads within a second.
	BodyMemory int64
	// BodyRate is the slowest rate of a request body, in bytes per second: every 10 s in which
	// it is read must bring that much; default 32 KiB in 10 s.
	BodyRate int64
	// Tracer creates the spans of requests, which continue their clients' traces and which
	// replicas continue; nil creates none.
	Tracer trace.Tracer
	// Registry registers the proxy's metrics; nil means none.
	Registry prometheus.Registerer
	// Logger gets the listener's start, replicas that give no response and refused plans; nil discards them.
	Logger *slog.Logger

	everyPath bool // serves paths outside the public API, too: tests choose answers by them
}

func (c *Config) validate() error {
	if c.DrainTimeout < 0 {
		return errors.New("proxy: DrainTimeout must not be negative")
	}
	if c.BodyMemory < 0 || c.BodyRate < 0 {
		return errors.New("proxy: BodyMemory and BodyRate must not be negative")
	}
	if c.BodyMemory == 0 {
		c.BodyMemory = DefaultBodyMemory
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = DefaultDrainTimeout
	}
	if c.Listen == nil {
		c.Listen = net.Listen
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Client.Logger == nil {
		c.Client.Logger = c.Logger
	}
	return nil
}
