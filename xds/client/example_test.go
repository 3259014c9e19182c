package client_test

import (
	"context"
	"reflect"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/client"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// newest is a Watcher that keeps the last snapshot and does not block.
type newest chan *client.Snapshot // capacity 1

func (n newest) Update(s *client.Snapshot) {
	select {
	case <-n:
	default:
	}
	n <- s
}

// A daemon that only needs plans and peers watches the control plane over an existing
// connection and receives the newest snapshot.
func ExampleWatcher() {
	watch := func(ctx context.Context, conn grpc.ClientConnInterface, replica string, use func([]policies.Plan, []policies.Replica)) error {
		snapshots := make(newest, 1)
		c, err := client.New(client.Config{Conn: conn, NodeID: "migrator/" + replica, Cluster: resources.ObserverCluster, Watcher: snapshots})
		if err != nil {
			return err
		}
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return c.Run(ctx) })
		g.Go(func() error {
			var plans []policies.Plan
			var replicas []policies.Replica
			for {
				select {
				case s := <-snapshots:
					p, err := client.ReadPlans(s)
					if err != nil || len(p) == 0 {
						continue // a rollout is in progress, or there is no plan yet: keep the last ones
					}
					if r := client.ReadReplicas(s); !reflect.DeepEqual(p, plans) || !reflect.DeepEqual(r, replicas) {
						plans, replicas = p, r
						use(plans, replicas)
					}
				case <-ctx.Done():
					return nil
				}
			}
		})
		return g.Wait()
	}
	_ = watch
}
