package attach

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Config says how the owner's Envoy reaches Cascade and what it gets from there.
type Config struct {
	// Control lists the control planes as host:port; each of them serves all
	// resources. At least one is required.
	Control []string
	// Cluster is the name of the control planes' cluster in the owner's Envoy. It
	// must equal control.xds_cluster of the fleet file, because the clusters that
	// the control plane serves refer to it. "" means "cascade-xds".
	Cluster string
	// TransportSocket is the transport socket of that cluster, for mutual TLS; nil is
	// plain text.
	TransportSocket *corev3.TransportSocket
	// Model is the only model that the listener serves, whatever the host name of
	// a request. "" means all models, selected by host name or by the request.
	Model string
	// BodyLimit is the largest body that can be retried on the fallback, in bytes: Envoy holds it
	// until an upstream has answered. 0 means length.BodyLimit.
	BodyLimit int64
	// FetchTimeout bounds Envoy's wait for the route table when it starts, and
	// for anything that it asks for later. 0 means 2 s.
	FetchTimeout time.Duration
	// EstimatorFilter adds the place for an estimator that runs inside the proxy and comes
	// from Cascade by ECDS. Without it requests are routed by content-length, or
	// by the headers that a filter of the owner's sets.
	EstimatorFilter bool
	// SeveralModels says that the estimator must read from the body which of several models a request is for.
	SeveralModels bool
	// LoadReports has Envoy report the load of its clusters to the control
	// plane. This is part of Envoy's bootstrap; see EnvoyConfig.Bootstrap.
	LoadReports bool

	// Listener is the name of the internal listener. "" means "cascade".
	Listener string
	// Fallback is a cluster of the owner's that serves a request when Cascade has
	// no route or no replica for it. "" means none: such a request is answered
	// with status 503.
	Fallback string
}

const (
	defaultFetchTimeout = 2 * time.Second
	// clusterTimeoutMargin is by how much a request's wait for a cluster that Envoy has not requested before exceeds
	// FetchTimeout.
	clusterTimeoutMargin = time.Second
	minTimeout           = 10 * time.Millisecond
)

// ConnectionBuffer returns per_connection_buffer_limit_bytes of a listener that Cascade routes, in bytes. It is the
// body limit if an estimator inside the proxy must hold whole bodies on a host of several models, because there Envoy
// bounds a body by this limit alone.
func (c Config) ConnectionBuffer() uint32 {
	if c.EstimatorFilter && c.SeveralModels {
		return uint32(c.bodyLimit())
	}
	return resources.ClientBuffer
}

// bodyLimit returns BodyLimit, or its default.
func (c Config) bodyLimit() int64 { return cmp.Or(c.BodyLimit, length.BodyLimit) }

// complete fills in the defaults.
func (c Config) complete() Config {
	if c.Cluster == "" {
		c.Cluster = resources.XDSCluster
	}
	if c.FetchTimeout == 0 {
		c.FetchTimeout = defaultFetchTimeout
	}
	if c.Listener == "" {
		c.Listener = resources.ListenerName
	}
	return c
}

// validate reports the first bad field of a completed configuration.
func (c Config) validate() error {
	if len(c.Control) == 0 {
		return errors.New("control: give the control plane's host:port")
	}
	for _, a := range c.Control {
		if _, _, err := splitHostPort(a); err != nil {
			return fmt.Errorf("control: %w", err)
		}
	}
	if c.FetchTimeout < minTimeout {
		return fmt.Errorf("fetch timeout %v: must be at least %v", c.FetchTimeout, minTimeout)
	}
	names := []string{c.Cluster, InternalCluster, fallbackCluster}
	if slices.Contains(names, c.Fallback) || c.Cluster == InternalCluster || c.Cluster == fallbackCluster {
		return fmt.Errorf("fallback %q and cluster %q: must not be equal, and must not be %q or %q", c.Fallback, c.Cluster, InternalCluster, fallbackCluster)
	}
	for _, n := range [...]string{c.Cluster, c.Model, c.Listener, c.Fallback} {
		if strings.ContainsAny(n, "\x00\r\n") {
			return fmt.Errorf("name %q: must be one line", n)
		}
	}
	return nil
}

// routeTable is the route table of the configuration.
func (c Config) routeTable() string {
	if c.Model != "" {
		return resources.SplitModelRouteName(c.Model)
	}
	return resources.SplitRouteName
}

// splitHostPort splits a host:port with a port that can be dialled.
func splitHostPort(address string) (host string, port uint32, err error) {
	h, p, err := net.SplitHostPort(address)
	n, perr := strconv.ParseUint(p, 10, 16)
	if err != nil || perr != nil || n == 0 || h == "" {
		return "", 0, fmt.Errorf("address %q: give host:port, such as 10.0.0.7:18000", address)
	}
	return h, uint32(n), nil
}

// allNumeric says whether every control plane's host is an IP address, which
// needs no resolver.
func (c Config) allNumeric() bool {
	return !slices.ContainsFunc(c.Control, func(a string) bool {
		host, _, _ := splitHostPort(a)
		_, err := netip.ParseAddr(host)
		return err != nil
	})
}
