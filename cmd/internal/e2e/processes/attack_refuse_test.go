package processes

import (
	"context"
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	loadstatsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// refuse has n nodes that the fleet does not have refuse all listeners and clusters that the
// control plane sends, and reports what that held back.
func (f *attackedFleet) refuse(ctx context.Context, n int) (string, error) {
	conn, err := grpc.NewClient(f.ports["xds"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, attackPatience)
	defer cancel()
	for i := range n {
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
		if err != nil {
			return "", err
		}
		for _, typ := range []string{resources.ListenerType, resources.ClusterType} {
			if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: fmt.Sprint("evil-", i)}, TypeUrl: typ}); err != nil {
				return "", err
			}
			r, err := stream.Recv()
			if err != nil {
				return "", err
			}
			if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResponseNonce: r.GetNonce(), ErrorDetail: &rpcstatus.Status{Code: 3, Message: "no"}}); err != nil {
				return "", err
			}
		}
	}
	for {
		s, err := f.Status(f.Admin)
		if err != nil {
			return "", err
		}
		refusing, counted := 0, 0
		for _, node := range s.Nodes {
			if !strings.HasPrefix(node.ID, "evil-") || node.NACKs == 0 {
				continue
			}
			refusing++
			if !node.Unlisted {
				counted++
			}
		}
		switch {
		case refusing < n: // the control plane has not read all refusals
		case counted > 0 || len(s.Refused) > 0 || s.Error != "":
			return fmt.Sprintf("%d of %d count, %d plans are rolled back, error %q", counted, n, len(s.Refused), s.Error), nil
		default:
			return "they do not count, and nothing is held back", nil
		}
	}
}

// impersonate calls the control plane as a part of the fleet, by TCP and in plain text, and returns the status of the
// call.
func (f *attackedFleet) impersonate(ctx context.Context, as []string) (string, error) {
	if len(as) != 2 {
		return "", fmt.Errorf("%q: must be a kind and a name", as)
	}
	conn, err := grpc.NewClient(f.ports["xds"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, attackPatience)
	defer cancel()
	node := &corev3.Node{Id: as[1]}
	var stream grpc.ClientStream
	var first, answer any
	switch as[0] {
	case "proxy":
		stream, err = discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
		first, answer = &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: resources.ClusterType}, new(discoveryv3.DeltaDiscoveryResponse)
	case "loads":
		stream, err = loadstatsv3.NewLoadReportingServiceClient(conn).StreamLoadStats(ctx)
		first, answer = &loadstatsv3.LoadStatsRequest{Node: node}, new(loadstatsv3.LoadStatsResponse)
	case "replica":
		stream, err = api.NewFleetClient(conn).Report(ctx)
		first, answer = &api.LoadReport{Replica: as[1], Model: llm, Sequence: 1 << 40}, new(api.LoadReply)
	}
	if err != nil {
		return "", err
	}
	_ = stream.SendMsg(first) // fails once the server has refused
	return status.Code(stream.RecvMsg(answer)).String(), nil
}
