package inprocess

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/xds"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// who is a gRPC service that returns the name of its replica.
type who struct {
	healthv1.UnimplementedHealthServer
	id string
}

// Check implements healthv1.HealthServer.
func (w who) Check(ctx context.Context, _ *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	return &healthv1.HealthCheckResponse{}, grpc.SetHeader(ctx, metadata.Pairs("replica", w.id))
}

// TestGRPCBoundaries checks that a stock gRPC client of xds:///<model>.cascade, which states its
// lengths itself, reaches the right stage on both sides of every boundary, from one token to the
// context. gRPC servers replace the front ends at the replicas' addresses; the front ends continue
// to report.
func TestGRPCBoundaries(t *testing.T) {
	t.Parallel()
	r := newFleetHarness(t, harnessConfig{replicas: 8, front: func(id string, c *frontend.Config) {
		l := c.Listener
		var err error
		if c.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		service := grpc.NewServer()
		healthv1.RegisterHealthServer(service, who{id: id})
		protocols := new(http.Protocols)
		protocols.SetHTTP1(true)
		protocols.SetUnencryptedHTTP2(true)
		server := &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.Header.Get("content-type"), "application/grpc") {
				service.ServeHTTP(w, r)
			} // any other request only checks that the fleet is available: 200
		})}
		done := make(chan struct{})
		go func() { defer close(done); _ = server.Serve(l) }()
		t.Cleanup(func() { server.Close(); <-done; service.Stop() })
	}})
	call := r.grpcClient()
	n := 0
	for _, cuts := range boundaries {
		p := r.plan(cut(cuts)...)
		// A gRPC client applies a plan after it has acknowledged it.
		r.WaitFor("every length at its stage", func() bool {
			for _, c := range cuts {
				for _, tokens := range []policies.Tokens{c - 1, c, c + 1} {
					id, err := call(strconv.FormatInt(int64(tokens), 10))
					if err != nil {
						t.Fatalf("%d tokens: %v", tokens, err)
					}
					if n++; p.StageOfReplica(id) != p.StageOf(tokens) {
						return false
					}
				}
			}
			return true
		})
	}
	t.Logf("%d calls", n)
}

// grpcClient returns a function that makes one call with a stated length and returns the replica
// that answered.
func (r *fleetHarness) grpcClient() func(tokens string) (policies.ReplicaID, error) {
	t := r.T
	t.Helper()
	bootstrap, err := json.Marshal(map[string]any{
		"node": map[string]any{"id": "grpc-client", "cluster": "cascade"},
		"xds_servers": []any{map[string]any{
			"server_uri": r.control.Addr().String(), "channel_creds": []any{map[string]any{"type": "insecure"}}, "server_features": []string{"xds_v3"},
		}},
	})
	testkit.NoError(t, err)
	resolver, err := xds.NewXDSResolverWithConfigForTesting(bootstrap)
	testkit.NoError(t, err)
	conn, err := grpc.NewClient(fmt.Sprintf("xds:///%s.cascade", llm), grpc.WithResolvers(resolver), grpc.WithTransportCredentials(insecure.NewCredentials()))
	testkit.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	client := healthv1.NewHealthClient(conn)
	return func(tokens string) (policies.ReplicaID, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var header metadata.MD
		_, err := client.Check(metadata.AppendToOutgoingContext(ctx, length.TokensHeader, tokens), &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true), grpc.Header(&header))
		if err != nil || len(header.Get("replica")) == 0 {
			return "", err
		}
		return policies.ReplicaID(header.Get("replica")[0]), nil
	}
}
