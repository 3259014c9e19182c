package control

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	loadstatsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestAttackLocalUsers has a user of the host call by TCP: it reports for a replica, refuses plans as a listed proxy,
// reports as that proxy and fetches modules. With a Unix socket for the fleet's own components none of that is
// answered; what changes nothing is.
func TestAttackLocalUsers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	local := testkit.Must(net.Listen("unix", path))
	f := newFakeFleet(t, 1)
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list, Local: local, Proxies: []string{"edge"}, Settings: resources.Settings{Estimator: resources.ExtProc}})
	if got := estimateTokens(t, c.Addr().String(), insecure.NewCredentials()); got != "1000" {
		t.Errorf("4000 bytes of a proxy's request, asked by TCP, are %q tokens", got)
	}
	ads := func(node string) func(context.Context, *grpc.ClientConn) error {
		return func(ctx context.Context, conn *grpc.ClientConn) error {
			s := testkit.Must(discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx))
			testkit.NoError(t, s.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: node}, TypeUrl: resources.ClusterType}))
			_, err := s.Recv()
			return err
		}
	}
	for name, tt := range map[string]struct {
		call     func(context.Context, *grpc.ClientConn) error
		tcp, own codes.Code
	}{
		"a replica's report": {func(ctx context.Context, conn *grpc.ClientConn) error {
			s := testkit.Must(api.NewFleetClient(conn).Report(ctx))
			_ = s.Send(f.replicas[0].report) // fails once the server has refused
			_, err := s.Recv()
			return err
		}, codes.PermissionDenied, codes.OK},
		"a listed proxy":     {ads("edge"), codes.PermissionDenied, codes.OK},
		"a proxy of others":  {ads("other"), codes.OK, codes.OK},
		"a migrator's plans": {ads("migrator/r0"), codes.OK, codes.OK},
		"a proxy's loads": {func(ctx context.Context, conn *grpc.ClientConn) error {
			s := testkit.Must(loadstatsv3.NewLoadReportingServiceClient(conn).StreamLoadStats(ctx))
			_ = s.Send(&loadstatsv3.LoadStatsRequest{Node: &corev3.Node{Id: "edge"}})
			_, err := s.Recv()
			return err
		}, codes.PermissionDenied, codes.OK},
		"a module": {func(ctx context.Context, conn *grpc.ClientConn) error {
			s := testkit.Must(api.NewModulesClient(conn).Fetch(ctx, &api.FetchRequest{Sha256: make([]byte, 32)}))
			_, err := s.Recv()
			return err
		}, codes.PermissionDenied, codes.NotFound},
	} {
		for target, want := range map[string]codes.Code{c.Addr().String(): tt.tcp, "unix:" + path: tt.own} {
			conn := testkit.Must(grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials())))
			ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
			if err := tt.call(ctx, conn); status.Code(err) != want {
				t.Errorf("%s by %s: %v, want %s", name, target, err, want)
			}
			cancel()
			conn.Close()
		}
	}
}
