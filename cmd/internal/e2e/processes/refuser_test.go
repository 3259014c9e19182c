package processes

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// refuser is a proxy that refuses the routes that it is sent once refusing is set. Weights, which
// change with the load, it accepts: the first refusal is then that of a plan.
type refuser struct {
	refusing atomic.Bool
	stop     func()
}

// startRefuser connects a node to a control plane until stop or the end of the test.
func startRefuser(t testing.TB, target, node string) *refuser {
	t.Helper()
	conn := testkit.Must(grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials())))
	ctx, cancel := context.WithCancel(context.Background())
	stream := testkit.Must(discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx, grpc.WaitForReady(true)))
	for _, typ := range []string{resources.ClusterType, resources.ListenerType, resources.RouteType, resources.EndpointType} {
		r := &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: node, Cluster: "cascade"}, TypeUrl: typ}
		switch typ {
		case resources.RouteType:
			r.ResourceNamesSubscribe = []string{resources.RouteName}
		case resources.EndpointType:
			for k := range policies.MaxStages {
				r.ResourceNamesSubscribe = append(r.ResourceNamesSubscribe, resources.EndpointName(llm, k))
			}
		}
		testkit.NoError(t, stream.Send(r))
	}
	out := &refuser{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			answer := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}
			if out.refusing.Load() && r.GetTypeUrl() == resources.RouteType {
				answer.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: "refused by the test"}
			}
			_ = stream.Send(answer) // an error of Send is Recv's, too
		}
	})
	out.stop = sync.OnceFunc(func() { cancel(); wg.Wait(); conn.Close() })
	t.Cleanup(out.stop)
	return out
}
