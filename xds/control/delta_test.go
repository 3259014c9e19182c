package control

import (
	"context"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// deltaStream is one raw delta ADS stream.
type deltaStream struct {
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

func openDelta(t *testing.T, c *runningControl) deltaStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	t.Cleanup(cancel)
	return deltaStream{testkit.Must(discoveryv3.NewAggregatedDiscoveryServiceClient(dial(t, c)).DeltaAggregatedResources(ctx, grpc.WaitForReady(true)))}
}

// dial connects to a control plane without TLS.
func dial(t *testing.T, c *runningControl) *grpc.ClientConn {
	t.Helper()
	conn := testkit.Must(grpc.NewClient(c.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())))
	t.Cleanup(func() { conn.Close() })
	return conn
}

// subscribeAll subscribes to everything that an Envoy or a follower does, with the versions
// that it has, and returns the versions that it is sent, by type and name. It
// subscribes last to a name that does not exist, whose response marks the end.
func (d deltaStream) subscribeAll(t *testing.T, have map[string]string) map[string]string {
	t.Helper()
	const fence = "cascade/no-such-model/s0"
	names := map[string][]string{
		resources.ClusterType: nil, resources.ListenerType: nil, // wildcards
		resources.RouteType: {resources.RouteName}, resources.RoutingType: {resources.RoutingName("")},
	}
	for k := range policies.MaxStages {
		names[resources.EndpointType] = append(names[resources.EndpointType], resources.EndpointName("m", k))
	}
	sent := make(map[string]string)
	for i, typ := range []string{resources.ClusterType, resources.ListenerType, resources.RouteType, resources.RoutingType, resources.EndpointType} {
		req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResourceNamesSubscribe: names[typ], InitialResourceVersions: make(map[string]string)}
		if i == 0 {
			req.Node = &corev3.Node{Id: "raw", Cluster: "cascade"}
		}
		for key, version := range have {
			if name, ok := cutType(key, typ); ok {
				req.InitialResourceVersions[name] = version
			}
		}
		d.send(t, req)
	}
	d.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resources.EndpointType, ResourceNamesSubscribe: []string{fence}})
	waiting := map[string]bool{fence: true}
	if have == nil {
		for typ := range names {
			waiting[typ] = true
		}
	}
	for len(waiting) > 0 {
		resp, err := d.stream.Recv()
		testkit.NoError(t, err)
		for _, r := range resp.GetResources() {
			sent[resp.GetTypeUrl()+" "+r.GetName()] = r.GetVersion()
			delete(waiting, resp.GetTypeUrl())
		}
		for _, name := range resp.GetRemovedResources() {
			delete(waiting, name)
		}
		d.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResponseNonce: resp.GetNonce()})
	}
	return sent
}

func (d deltaStream) send(t *testing.T, req *discoveryv3.DeltaDiscoveryRequest) {
	t.Helper()
	testkit.NoError(t, d.stream.Send(req))
}

func cutType(key, typ string) (name string, ok bool) {
	if len(key) > len(typ) && key[:len(typ)] == typ {
		return key[len(typ)+1:], true
	}
	return "", false
}
