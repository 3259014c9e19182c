// Package migratord assembles and runs the migrator of one replica: its front
// end, its market, its migration executor and its connections.
//
// New builds a Daemon from the fleet file, and Run runs it. It is the same for
// a process of its own ("cascade migrator") and for a whole fleet in one
// process (package inprocess), so that the tests of each cover the other.
// During an upgrade a replica has two Daemons in two processes, which exchange
// messages over a Link.
//
// The package decides nothing: its components do.
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

// Config configures a Daemon.
type Config struct {
	// Fleet and Replica are the fleet and the replica to serve. Required.
	Fleet   wiring.Fleet
	Replica config.Replica
	// Control is the connection to the control plane, for reports and plans. The
	// caller owns it and makes it with loadreport.ConnectParams. Required.
	Control grpc.ClientConnInterface
	// OtherControl are connections to the other control planes of the fleet. All
	// of them receive the reports, and plans come from the first that answers.
	OtherControl []grpc.ClientConnInterface
	// Clients and Peers are the open listeners of the replica's two addresses;
	// Peers is already wrapped in TLS where TLS is used. Required.
	Clients, Peers net.Listener
	// Listen reopens the clients' address after the engine was away; nil means
	// net.Listen.
	Listen func(network, address string) (net.Listener, error)
	// TLS secures the connections and listeners that the daemon opens itself;
	// nil means plain text, which the fleet file allows on loopback only.
	TLS *certs.Provider
	// Runtime is a directory of the process's user, of at most 80 bytes, for the
	// sockets of the shared-memory and CUDA transports. "" disables these
	// transports.
	Runtime string
	// Blocks overrides Replica.Blocks, the directory of the engine's sockets.
	Blocks string
	// GPUs attach an engine's pool in the memory of a GPU; the caller runs them,
	// and closes them after Run. nil rejects such engines.
	GPUs *gpuset.Set
	// RDMA is the loaded library of RDMA devices; nil means that there are none,
	// or that they are not used.
	RDMA *verbs.Library
	// Machine returns what this host has, nil before the first inspection. The
	// result must not be changed; a later inspection returns another one. The
	// fleet file's topology of the node takes precedence. nil: the replica
	// reports nothing but its node.
	Machine func() *topology.Machine
	// Predecessor is the id of the preceding process of the same replica, which
	// still runs or did a moment ago; the caller then calls FollowPredecessor. 0
	// means none.
	Predecessor int
	// Drain bounds how long streams continue after Drain; 0 means 10 min.
	Drain time.Duration
	// Host is the policy slots that the replicas of one process share; the
	// caller runs it. nil means slots of the daemon's own, where the fleet has
	// modules.
	Host *policyhost.Host
	// Tracer creates the spans of migrations; nil creates none.
	Tracer trace.Tracer
	// Logger logs what operators should know; nil discards.
	Logger *slog.Logger
	// EditFrontend changes the front end's configuration last; nil changes
	// nothing. Tests use it.
	EditFrontend func(*frontend.Config)
}

func (c Config) validate() (Config, error) {
	switch {
	case c.Replica.ID == "":
		return c, errors.New("migrator: Config.Replica is empty; set a replica of the fleet")
	case c.Control == nil:
		return c, fmt.Errorf("migrator of %s: Config.Control is nil; set a connection to the control plane", c.Replica.ID)
	case c.Clients == nil || c.Peers == nil:
		return c, fmt.Errorf("migrator of %s: Config.Clients and Config.Peers are required; open the replica's addresses", c.Replica.ID)
	}
	if c.Blocks == "" {
		c.Blocks = c.Fleet.Blocks(c.Replica)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}
