package attack

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// refuse has n nodes that the fleet does not have refuse all listeners and clusters that the
// control plane sends, and reports what that held back.
func (f *fleet) refuse(ctx context.Context, n int) (string, error) {
	conn, err := grpc.NewClient(f.ports["xds"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
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
		s, err := f.status(ctx)
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
			return fmt.Sprintf("%d of %d count, %d resources are held back, error %q", counted, n, len(s.Refused), s.Error), nil
		default:
			return "they do not count, and nothing is held back", nil
		}
	}
}

// status returns the control plane's status.
func (f *fleet) status(ctx context.Context) (s control.Status, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.ports["admin"]+"/status", nil)
	if err != nil {
		return s, err
	}
	resp, err := f.http.Do(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	return s, json.NewDecoder(resp.Body).Decode(&s)
}
