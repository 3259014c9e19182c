package inprocess

import (
	"context"
	"net/url"
	"slices"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/control"
)

// waitUntilAllServe waits until every replica is healthy and the proxies know it: only then can they pass over
// the next one that is killed.
func (r *fleetHarness) waitUntilAllServe() {
	r.T.Helper()
	r.waitForStatus("every replica serves", func(s control.Status) bool {
		return allHealthy(s) && !slices.ContainsFunc(s.Nodes, func(n control.Node) bool { return !n.Current })
	})
}

// killEngine ends an engine as a crash would, without a shutdown. Several end at once: were they to end one after
// another, a stream could continue at the next one, and end as the request that breaks engines (session.MaxLosses).
func (r *fleetHarness) killEngine(ids ...string) {
	r.T.Helper()
	var hosts []string
	kill := func() { r.sockets.cut(hosts...) }
	for _, id := range ids {
		u, err := url.Parse(r.replica(id).Engine)
		testkit.NoError(r.T, err)
		hosts = append(hosts, u.Host)
		cut := kill
		kill = func() { r.parts.halt(r.T, "engine "+id, cut) }
	}
	kill()
}

// startEngine runs a new engine in place of the killed one.
func (r *fleetHarness) startEngine(id string) {
	r.T.Helper()
	n := r.replica(id)
	u, err := url.Parse(n.Engine)
	testkit.NoError(r.T, err)
	engine, err := r.newEngine(n)
	testkit.NoError(r.T, err)
	l, err := r.sockets.listen("tcp", u.Host)
	testkit.NoError(r.T, err)
	r.parts.revive(r.T, "engine "+id, func(ctx context.Context) error { return runEngine(ctx, engine, l) })
}

// killFront ends a front end as a crash would, without a shutdown.
func (r *fleetHarness) killFront(id string) {
	r.T.Helper()
	n := r.replica(id)
	r.parts.halt(r.T, "front "+id, func() { r.sockets.cut(n.Address, n.Peer) })
}

// startFront runs a new front end in place of the killed one.
func (r *fleetHarness) startFront(id string) {
	r.T.Helper()
	n := r.replica(id)
	clients, err := r.sockets.listen("tcp", n.Address)
	testkit.NoError(r.T, err)
	peers, err := r.sockets.listen("tcp", n.Peer)
	testkit.NoError(r.T, err)
	migrator, err := r.newMigrator(n, clients, peers)
	testkit.NoError(r.T, err)
	r.fronts[id], r.daemons[id] = migrator.Frontend(), migrator
	r.parts.revive(r.T, "front "+id, migrator.Run)
}

// stopControl stops the control plane.
func (r *fleetHarness) stopControl() {
	r.T.Helper()
	r.parts.halt(r.T, "control", nil)
}
