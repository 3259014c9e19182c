// Package migratord is the migrator of one replica: its front, its part in the
// market, its mover and its connections, joined and run together.
//
// It decides nothing: the parts do. It is the same for a process of its own
// ("cascade migrator") and for a whole fleet in one process (cmd/internal/inprocess), so
// that both run what the other tests.
package migratord

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/gpuset"
	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// Config is what a Daemon needs.
type Config struct {
	// Fleet and Replica say which replica of which fleet. Required.
	Fleet   wiring.Fleet
	Replica config.Replica
	// Control leads to the control plane, for reports and plans; the caller owns
	// it and makes it with uplink.ConnectParams. Required.
	Control grpc.ClientConnInterface
	// OtherControl leads to the other control planes of the fleet in the same way:
	// all hear the reports, and plans come from the first that answers.
	OtherControl []grpc.ClientConnInterface
	// Clients and Peers are the open listeners of the replica's two addresses;
	// Peers is wrapped in TLS already where there is any. Required.
	Clients, Peers net.Listener
	// Listen opens the clients' address again after the engine was away; nil
	// means net.Listen.
	Listen func(network, address string) (net.Listener, error)
	// TLS secures what the daemon opens itself; nil is plaintext, which the fleet
	// file allows on loopback only.
	TLS *certs.Provider
	// Runtime is a directory of the own user, of at most 80 bytes, for the
	// sockets of shared memory. "" switches that transport off.
	Runtime string
	// Blocks overrides Replica.Blocks, the directory of the engine's sockets.
	Blocks string
	// GPUs reach an engine's pool where it is in a GPU's memory; the caller runs them,
	// and closes them after Run. nil refuses such engines.
	GPUs *gpuset.Set
	// RDMA is the loaded library of RDMA devices; nil means that there are none, or
	// that they are not used.
	RDMA *verbs.Library
	// Machine is what this machine has, nil while nobody has looked; what it returns is
	// not changed, and is another one when it is looked at again. It counts where the
	// fleet file's topology has nothing of the node. nil: the replica tells of nothing
	// but its node.
	Machine func() *topology.Machine
	// Predecessor is the id of the process before this one of the same replica,
	// which still lives, or did a moment ago: Follow tells of it. 0 means none.
	Predecessor int
	// Drain bounds the life of streams after Drain; 0 means 10 min.
	Drain time.Duration
	// Host is the policy slots that replicas of one process share; the caller runs
	// it. Nil is one of the daemon's own, where the fleet has modules.
	Host *policyhost.Host
	// Tracer makes the spans of moves; nil makes none.
	Tracer trace.Tracer
	// Logger takes what an operator should know; nil discards.
	Logger *slog.Logger
	// EditFrontend changes the front's configuration last; nil changes nothing. Tests
	// use it.
	EditFrontend func(*frontend.Config)
}

func (c Config) validate() (Config, error) {
	switch {
	case c.Replica.ID == "":
		return c, errors.New("migrator: Replica is empty; name a replica of the fleet")
	case c.Control == nil:
		return c, fmt.Errorf("migrator of %s: Control is nil; give it a connection to the control plane", c.Replica.ID)
	case c.Clients == nil || c.Peers == nil:
		return c, fmt.Errorf("migrator of %s: Clients and Peers are required; open the replica's addresses", c.Replica.ID)
	}
	if c.Blocks == "" {
		c.Blocks = c.Fleet.Blocks(c.Replica)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}
