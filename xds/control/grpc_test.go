package control

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/xds"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/xds/store"
)

// TestGRPCClientRoutesByLength checks that gRPC's own xDS client sends every
// length to a replica of its stage, exact at every boundary.
func TestGRPCClientRoutesByLength(t *testing.T) {
	f := newFakeFleet(t, 4)
	plan := policies.Plan{Model: "m", Epoch: 3, Stages: []policies.Stage{
		{Low: 0, High: 1000, Replicas: []policies.ReplicaID{"r0", "r1"}},
		{Low: 1000, High: 9000, Replicas: []policies.ReplicaID{"r2"}},
		{Low: 9000, High: policies.Unbounded, Replicas: []policies.ReplicaID{"r3"}},
	}}
	st := new(store.Memory)
	if _, err := st.CompareAndSwap(t.Context(), "", store.Object{Epoch: 3, Plans: []policies.Plan{plan}}); err != nil {
		t.Fatal(err)
	}
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list, Store: st})
	f.startReports(t, c)

	call := grpcClient(t, c, "m")
	lengths := []int64{0, 1, 999, 1000, 1001, 8999, 9000, 9001, context32k - 1, context32k}
	for _, n := range lengths {
		want := plan.StageOf(policies.Tokens(n))
		if id := call(strconv.FormatInt(n, 10)); plan.StageOfReplica(id) != want {
			t.Errorf("%d tokens: replica %s of stage %d, want stage %d", n, id, plan.StageOfReplica(id), want)
		}
	}
	for _, bad := range []string{"", "abc", "-1"} {
		if id := call(bad); plan.StageOfReplica(id) != len(plan.Stages)-1 {
			t.Errorf("length %q: replica %s, want the last stage", bad, id)
		}
	}
	// Both replicas of the first stage get calls once the client has connected.
	got := make(map[policies.ReplicaID]int)
	policytest.WaitFor(t, "calls at both replicas of the first stage", func() bool {
		got[call("5")]++
		return len(got) == 2
	})
}

// grpcClient dials the model as a gRPC application does, and returns a function
// that makes one call with a length ("" for none) and returns the replica that
// answered.
func grpcClient(t *testing.T, c *runningControl, model string) func(tokens string) policies.ReplicaID {
	t.Helper()
	bootstrap, err := json.Marshal(map[string]any{
		"node": map[string]any{"id": "grpc-client", "cluster": "cascade"},
		"xds_servers": []any{map[string]any{
			"server_uri": c.Addr().String(), "channel_creds": []any{map[string]any{"type": "insecure"}}, "server_features": []string{"xds_v3"},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	resolver, err := xds.NewXDSResolverWithConfigForTesting(bootstrap)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(fmt.Sprintf("xds:///%s.cascade", model), grpc.WithResolvers(resolver), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	client := healthv1.NewHealthClient(conn)
	return func(tokens string) policies.ReplicaID {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		defer cancel()
		if tokens != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, length.TokensHeader, tokens)
		}
		var header metadata.MD
		if _, err := client.Check(ctx, &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true), grpc.Header(&header)); err != nil {
			t.Fatalf("length %q: %v", tokens, err)
		}
		return policies.ReplicaID(header.Get("replica")[0])
	}
}
