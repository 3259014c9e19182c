// Package migratord assembles and runs the migrator of one replica: its front end, its market, its
// migration executor and its connections.
//
// New builds a Daemon from the fleet file, and Run runs it. A separate process ("cascade migrator")
// and a whole fleet in one process (package inprocess) use the same Daemon, so that the tests of
// each cover the other. During an upgrade a replica has two Daemons in two processes, which
// exchange messages over a Link.
//
// The package makes no decisions: its components do.
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
	"github.com/cascadeinfer/cascade/cmd/internal/headroom"
	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/market"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// Config configures a Daemon.
type Config struct {
	// Fleet and Replica are the fleet and the replica to serve. Required.
	Fleet   wiring.Fleet
	Replica config.Replica
	// Control is the connection to the control plane, for reports and plans. The
	// caller owns it and makes it with loadreport.ConnectParams. Required.
	Control grpc.ClientConnInterface
	// OtherControl are connections to the other control planes of the fleet. All of them receive
	// the reports, and the daemon takes plans from the first that answers.
	OtherControl []grpc.ClientConnInterface
	// Clients and Peers are the open listeners of the replica's two addresses;
	// Peers is at Fleet.PeerSocket, and already wrapped in TLS where TLS is used; New wraps Clients. Required.
	Clients, Peers net.Listener
	// Listen reopens the clients' address when the engine is available again; nil means net.Listen.
	Listen func(network, address string) (net.Listener, error)
	// TLS secures the connections and listeners that the daemon opens itself; nil means plain text,
	// which the fleet file allows only on loopback.
	TLS *certs.Provider
	// Runtime is a directory of the process's user for the sockets of the shared-memory and CUDA
	// transports. Its path has at most 80 bytes. "" disables these transports.
	Runtime string
	// Blocks overrides Replica.Blocks, the directory of the engine's socket.
	Blocks string
	// GPUs attach an engine's pool in GPU memory; the caller runs them, and closes them after Run.
	// nil rejects such engines.
	GPUs *gpuset.Set
	// RDMA is the loaded library of RDMA devices; nil means that the host has none, or that they
	// are not used.
	RDMA *verbs.Library
	// Machine returns the hardware of this host, or nil before the first inspection. The result
	// must not be changed; a later inspection returns a new one. The fleet file's topology of the
	// host takes precedence. If Machine is nil, the replica reports only its host.
	Machine func() *topology.Machine
	// Predecessor is the id of the preceding process of the same replica, which still runs or ended
	// a moment ago. If it is not 0, the caller calls FollowPredecessor. 0 means that there is no
	// predecessor.
	Predecessor int
	// Problems returns what the process lacks or will lack soon, for the load reports; nil reports nothing.
	Problems func() []loadreport.Problem
	// Room decides whether the process has resources for another request; nil admits all.
	Room *headroom.Monitor
	// Drain bounds how long streams continue after Drain; 0 means 10 min.
	Drain time.Duration
	// Host holds the policy slots that the replicas of one process share; the caller runs it. If it
	// is nil and the fleet has modules, the daemon has slots of its own.
	Host *policyhost.Host
	// Tracer creates the spans of migrations; nil creates none.
	Tracer trace.Tracer
	// Logger logs events for operators; nil discards them.
	Logger *slog.Logger
	// EditFrontend edits the front end's configuration after New has completed it; nil changes
	// nothing. Tests use it.
	EditFrontend func(*frontend.Config)
	// EditMarket is EditFrontend for the configuration of the market.
	EditMarket func(*market.Config)
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
	if c.Listen == nil {
		c.Listen = net.Listen
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}
