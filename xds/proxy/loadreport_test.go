package proxy

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// refusingConn is a connection to a control plane that refuses streams.
type refusingConn struct {
	grpc.ClientConnInterface
	streams int
}

func (c *refusingConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream,
	error) {
	c.streams++
	return nil, errors.New("permission denied")
}

// TestRefusedLoadReports checks that a proxy whose load reports are refused, because it is not in
// proxy.nodes for instance, asks less and less often.
func TestRefusedLoadReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		var conn refusingConn
		(&Proxy{cfg: Config{Logger: slog.New(slog.DiscardHandler)}}).reportLoads(ctx, &conn)
		if conn.streams != 14 { // after 0, 1, 3, 7, 15 and 31 s, and then every 30 s
			t.Errorf("%d streams in five minutes, want 14", conn.streams)
		}
	})
}

// TestLoadsOfRemovedReplicas checks that a stage forgets replicas that have left, as Pods do all the time, but no
// requests in progress.
func TestLoadsOfRemovedReplicas(t *testing.T) {
	p := testkit.Must(New(Config{Client: routing.Config{Target: "127.0.0.1:1", NodeID: "p"}}))
	apply := func(address string) *stage {
		p.apply(&resources.Routing{Models: []resources.RoutedModel{{LengthMeta: resources.LengthMeta{Model: "m"},
			Plan:     policies.Plan{Stages: []policies.Stage{{High: policies.Unbounded, Replicas: []policies.ReplicaID{"r"}}}},
			Replicas: []resources.RoutedReplica{{Endpoint: resources.Endpoint{Replica: policies.Replica{ID: "r", Address: address}}}}}}})
		return p.state.Load().stages[stageKey{"m", 0}]
	}
	running := apply("10.0.0.1:1").load("10.0.0.1:1")
	running.begin()
	apply("10.0.0.2:1").load("10.0.0.2:1")
	s := apply("10.0.0.3:1")
	if s.loads["10.0.0.1:1"] != running || s.loads["10.0.0.2:1"] != nil {
		t.Errorf("the stage counts %v", s.loads)
	}
}
