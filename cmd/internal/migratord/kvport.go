package migratord

import (
	"cmp"
	"context"
	"errors"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/kvport"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// newKVPort builds the client of the engine's kv.sock, if it has one and requests are migrated live, and the transports of
// its memory.
func (d *Daemon) newKVPort() (err error) {
	dir := cmp.Or(d.cfg.Blocks, d.cfg.Fleet.Connector(d.cfg.Replica))
	if dir == "" || d.cfg.Fleet.Migration.Mode != config.MigrationLive {
		return nil
	}
	c := kvport.Config{
		Self: d.id, Dir: dir, Network: d.network, Incarnation: uint64(d.startedAt.UnixMicro()),
		Paths: func() *transport.Paths { return d.paths }, Logger: d.cfg.Logger,
	}
	if d.cfg.GPUs != nil {
		c.Device = d.cfg.GPUs.Attach
	}
	if d.kv, err = kvport.New(c); err != nil {
		return err
	}
	return d.newTransports(d.kv)
}

// showsTable reports whether the engine is configured to show its block table.
func (d *Daemon) showsTable() bool { return d.kv != nil && d.cfg.Blocks != "" }

// pool returns the memory that the transports serve; nil for none.
func (d *Daemon) pool() transport.Pool {
	if d.kv == nil {
		return nil
	}
	return d.kv
}

// Connector returns the client of the connector of the replica's engine; nil if the fleet file names none, or
// nothing is migrated live.
func (d *Daemon) Connector() *kvport.Client {
	if d.showsTable() {
		return nil
	}
	return d.kv
}

// serveFetch returns what serves calls of FetchKV of peers, nil without a connector.
func (d *Daemon) serveFetch() func(context.Context, policies.ReplicaID, *api.FetchKVRequest, func(*api.FetchKVAnswer) error) error {
	if d.cfg.Fleet.Connector(d.cfg.Replica) == "" {
		return nil
	}
	return func(ctx context.Context, from policies.ReplicaID, q *api.FetchKVRequest, answer func(*api.FetchKVAnswer) error) error {
		if d.kv == nil {
			return errors.New("migration.mode is not live: no KV is handed over")
		}
		return d.kv.Serve(ctx, from, q, answer)
	}
}
