package local

import (
	"context"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cascadeinfer/cascade/migrator/uplink"
)

// runFront runs one replica's front and its reports to the control plane.
func (f *Fleet) runFront(ctx context.Context, g *errgroup.Group, n node) {
	g.Go(func() error { return n.front.Run(ctx) })
	g.Go(func() error {
		conn, err := grpc.NewClient(f.control.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), uplink.ConnectParams())
		if err != nil {
			return err
		}
		defer conn.Close()
		up, err := uplink.New(uplink.Config{Replica: n.id, Model: n.model, Conn: conn, Source: n.front.Status, Changed: n.front.Changed(), Logger: f.log.With("replica", n.id)})
		if err != nil {
			return err
		}
		return up.Run(ctx)
	})
}
