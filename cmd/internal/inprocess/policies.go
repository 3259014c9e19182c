package inprocess

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	names "github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// hostName is the name of the policy slots that the migrators of this process
// share: a process is one host, however many replicas it has.
const hostName = "local"

// newHost builds the slots that the migrators of this process share, and the client that follows
// the control plane for them.
func (f *Fleet) newHost() error {
	fleet := &f.cfg.Fleet
	if !fleet.ModulesEnabled() || !fleet.Places() || len(fleet.Fleet.Replicas) == 0 {
		return nil
	}
	log := f.log.With("part", "policies")
	var err error
	if f.host, err = policyhost.NewHost(policyhost.HostConfig{
		Fleet: fleet, Role: names.Migrator, Name: hostName, Replicas: len(fleet.Fleet.Replicas), Kinds: wiring.MigratorKinds,
		Native: fleet.NativePolicies(fleet.Market(fleet.Fleet.Replicas[0])), Fetch: policyhost.FetchFrom([]grpc.ClientConnInterface{f.controlConn}), Logger: log,
	}); err != nil {
		return fmt.Errorf("policies: %w", err)
	}
	f.slotClient, err = routing.New(routing.Config{
		Conn: f.controlConn, NodeID: names.MigratorNodeID(hostName), Cluster: resources.ObserverCluster,
		Slots: policyhost.Resources(wiring.MigratorKinds), CheckSlot: f.host.CheckResource, Watcher: f.host.Follower(), Logger: log,
	})
	return err
}

// runHost runs the shared slots until ctx ends.
func (f *Fleet) runHost(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- f.slotClient.Run(ctx) }()
	return errors.Join(f.host.Run(ctx), <-done)
}

// Hosts returns the policy slots of this process: those that the migrators share, and the control
// plane's. It returns none if no module may decide.
func (f *Fleet) Hosts() []*policyhost.Host {
	var all []*policyhost.Host
	for _, h := range []*policyhost.Host{f.host, f.plane.Host} {
		if h != nil {
			all = append(all, h)
		}
	}
	return all
}
