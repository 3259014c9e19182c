package local

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
)

func cells(f policies.Flow) *api.Flow {
	out := &api.Flow{Arrivals: f.Arrivals, Tokens: f.Tokens, Reads: f.Reads, Prefill: f.Prefill, Prefill2: f.Prefill2, Weight: f.Weight, Crossings: f.Crossings, Seen: f.Seen}
	for _, e := range f.Edges {
		out.Edges = append(out.Edges, int64(e))
	}
	return out
}

// TEMPORARY
func (f *Fleet) runFront(ctx context.Context, g *errgroup.Group, n node) {
	g.Go(func() error { return n.front.Run(ctx) })
	g.Go(func() error {
		conn, err := grpc.NewClient(f.control.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		for ctx.Err() == nil {
			st, err := api.NewFleetClient(conn).Report(ctx)
			if err != nil {
				time.Sleep(100 * time.Millisecond)
				continue
			}
			go func() {
				for {
					if _, err := st.Recv(); err != nil {
						return
					}
				}
			}()
			for seq := uint64(1); ctx.Err() == nil; seq++ {
				s := n.front.Status()
				var snap []*api.Batch
				for _, b := range s.Snapshot {
					snap = append(snap, &api.Batch{N: b.N, SumInput: b.SumI, SumInput2: b.SumI2, SumLength: b.SumL})
				}
				err := st.Send(&api.LoadReport{Replica: n.id, Model: n.model, Sequence: seq, Load: &api.Load{Running: uint32(s.Load.Running), Waiting: uint32(s.Load.Waiting), HeldTokens: int64(s.Load.Held), PromisedTokens: int64(s.Load.Promised), IterationSeconds: s.Load.Iteration}, Flow: cells(s.Flow), Snapshot: snap, EngineReady: s.EngineReady, Draining: s.Draining, BytesPerToken: s.BytesPerToken, EstimateError: s.EstimateError})
				if err != nil {
					break
				}
				time.Sleep(500 * time.Millisecond)
			}
		}
		return nil
	})
}
