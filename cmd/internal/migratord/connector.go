package migratord

import (
	"context"
	"errors"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/connector"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// newConnector builds the client of the connector of the replica's engine, and the transports of its
// staging memory.
func (d *Daemon) newConnector(dir string) (err error) {
	d.connector, err = connector.New(connector.Config{
		Self: d.id, Dir: dir, Network: d.network, Incarnation: uint64(d.startedAt.UnixMicro()),
		Paths: func() *transport.Paths { return d.paths }, Logger: d.cfg.Logger,
	})
	if err != nil {
		return err
	}
	return d.newTransports(d.connector)
}

// Connector returns the client of the connector of the replica's engine; nil if the fleet file names none, or
// nothing is migrated live.
func (d *Daemon) Connector() *connector.Client { return d.connector }

// serveFetch returns what serves calls of FetchKV of peers, nil without a connector.
func (d *Daemon) serveFetch() func(context.Context, policies.ReplicaID, *api.FetchKVRequest, func(*api.FetchKVAnswer) error) error {
	if d.cfg.Fleet.Connector(d.cfg.Replica) == "" {
		return nil
	}
	return func(ctx context.Context, from policies.ReplicaID, q *api.FetchKVRequest, answer func(*api.FetchKVAnswer) error) error {
		if d.connector == nil {
			return errors.New("migration.mode is not live: no KV is handed over")
		}
		return d.connector.Serve(ctx, from, q, answer)
	}
}
