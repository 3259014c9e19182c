package inprocess

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

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/cmd/internal/migratord"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestAttackLocalUser has a user of the host, whom admin_users refuses, report as r1, refuse plans as the fleet's proxy,
// report loads as that proxy, and connect as a migrator. The fleet's own migrators and proxies connect by sockets that
// name their user, and serve; a request moves between two of them.
func TestAttackLocalUser(t *testing.T) {
	planes(t, onProxy|onEnvoy, func(t *testing.T, envoy string) {
		dir := t.TempDir()
		r := newFleetHarness(t, harnessConfig{envoy: envoy, replicas: 2, edit: func(f *config.Fleet) {
			f.Control.AdminUsers = []string{"root"}
			f.Control.Socket = filepath.Join(dir, "s")
			f.Migration, f.Speed = config.Migration{Mode: config.MigrationReprompt}, 4
		}, migrator: func(c *migratord.Config) { c.Drain = patience }})
		node := &corev3.Node{Id: map[bool]string{true: embeddedProxy, false: envoyProxy}[envoy == ""]}
		conn := testkit.Must(grpc.NewClient(r.cfg.Fleet.Fleet.Control.Listen, grpc.WithTransportCredentials(insecure.NewCredentials())))
		defer conn.Close()
		for name, call := range map[string]func(context.Context) error{
			"a report as r1": func(ctx context.Context) error {
				s := testkit.Must(api.NewFleetClient(conn).Report(ctx))
				_ = s.Send(&api.LoadReport{Replica: "r1"}) // fails once the server has refused
				_, err := s.Recv()
				return err
			},
			"a refusal as the proxy": func(ctx context.Context) error {
				s := testkit.Must(discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx))
				_ = s.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: resources.ClusterType})
				_, err := s.Recv()
				return err
			},
			"loads as the proxy": func(ctx context.Context) error {
				s := testkit.Must(loadstatsv3.NewLoadReportingServiceClient(conn).StreamLoadStats(ctx))
				_ = s.Send(&loadstatsv3.LoadStatsRequest{Node: node})
				_, err := s.Recv()
				return err
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			if err := call(ctx); status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s by loopback: %v", name, err)
			}
			cancel()
		}
		for _, replica := range r.cfg.Fleet.Fleet.Replicas {
			if conn, err := net.Dial("tcp", replica.Peer); err == nil {
				conn.Close()
				t.Errorf("a user of the host reaches the peers' port of %s", replica.ID)
			}
		}
		streams := []*harness.Stream{r.Stream(prompt(120, forever)), r.Stream(prompt(130, forever))}
		r.WaitForGrowth(streams)
		r.daemons["r0"].Drain()
		testkit.WaitFor(t, "the engine of r0 to be empty", func() bool {
			l := r.fronts["r0"].Status().Load
			return l.Running+l.Waiting == 0
		})
		r.WaitForGrowth(streams)
	})
}
