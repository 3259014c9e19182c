package proxy

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/xds/client"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// DefaultDrainTimeout is the default of Config.DrainTimeout.
const DefaultDrainTimeout = 30 * time.Second

// DefaultBodyMemory is the default of Config.BodyMemory.
const DefaultBodyMemory = 512 << 20

// Config is what a Proxy needs.
type Config struct {
	// Client says how to reach the control plane and under which NodeID. Its Watcher, if
	// any, receives every snapshot after the proxy has applied it.
	Client client.Config
	// Listener replaces the address of an LDS listener: the proxy serves one LDS listener on
	// it and no other, and closes it when Run ends. nil means that every LDS listener is
	// bound to its own address.
	Listener net.Listener
	// ListenerName is the LDS listener that Listener serves; "" means the first by name.
	ListenerName string
	// Listen opens the address of an LDS listener; nil means net.Listen. Calls do not overlap, and
	// Ready is closed after the calls for the first configuration.
	Listen func(network, address string) (net.Listener, error)
	// Admit, unless it is nil, is called for every new request, which is refused on an
	// error. It must not block.
	Admit func() error
	// Problems returns what this process lacks or will lack soon, for the load reports to the control
	// plane; nil reports nothing.
	Problems func() []loadreport.Problem
	// WrapListener wraps every listener before it is served; nil changes none.
	WrapListener func(net.Listener) net.Listener
	// TLS is used for listeners with TLS; it holds their certificate. If it is nil, such a
	// listener is not served.
	TLS *tls.Config
	// DrainTimeout is how long streams may continue after Run's context has ended, and after
	// their listener was removed; default DefaultDrainTimeout.
	DrainTimeout time.Duration
	// BodyMemory bounds the memory of all request bodies together, in bytes; default
	// DefaultBodyMemory. A body that must be read to be routed is refused beyond it, and any
	// other one is passed on but can no longer be sent again to another endpoint.
	BodyMemory int64
	// BodyRate is the slowest rate of a request body, in bytes per second: every 10 s in which
	// it is read must bring that much; default 32 KiB in 10 s.
	BodyRate int64
	// Tracer creates the spans of requests, which continue their clients' traces and which
	// replicas continue; nil creates none.
	Tracer trace.Tracer
	// Registry registers the proxy's metrics; nil means none.
	Registry prometheus.Registerer
	// Logger gets listener changes, ejections and refused resources; nil discards them.
	Logger *slog.Logger
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
	if c.ListenerName != "" && c.Listener == nil {
		return errors.New("proxy: ListenerName needs a Listener")
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
