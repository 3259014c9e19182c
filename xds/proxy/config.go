package proxy

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cascadeinfer/cascade/xds/client"
)

// DefaultDrainTimeout is the default of Config.DrainTimeout.
const DefaultDrainTimeout = 30 * time.Second

// Config is what a Proxy needs.
type Config struct {
	// Client says how to reach the control plane and under which NodeID. Its
	// Watcher, if any, is told of every snapshot after the proxy uses it.
	Client client.Config
	// Listener replaces the address that LDS gives: the proxy serves one
	// listener of LDS on it and no other. It is closed when Run ends. Nil
	// means that every listener of LDS is bound where LDS says.
	Listener net.Listener
	// ListenerName is the LDS listener that Listener stands for; "" means the
	// first by name.
	ListenerName string
	// TLS is used by listeners whose clients speak TLS; it holds their
	// certificate. Nil: such a listener is not served.
	TLS *tls.Config
	// DrainTimeout is how long streams may go on after Run's context has
	// ended, and after their listener was removed; default DefaultDrainTimeout.
	DrainTimeout time.Duration
	// Registry takes the proxy's metrics; nil keeps them unseen.
	Registry prometheus.Registerer
	// Logger gets listeners, ejections and refused resources; nil discards.
	Logger *slog.Logger
}

func (c *Config) validate() error {
	if c.DrainTimeout < 0 {
		return errors.New("proxy: DrainTimeout must not be negative")
	}
	if c.ListenerName != "" && c.Listener == nil {
		return errors.New("proxy: ListenerName needs a Listener")
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = DefaultDrainTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Client.Logger == nil {
		c.Client.Logger = c.Logger
	}
	return nil
}
