package publish_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// startFollower runs a node that follows the plan, refuses the one of epoch bad, says nothing of
// the one of epoch mute, and keeps the epoch of its last one and the highest that it was sent.
func startFollower(t *testing.T, address, id string, bad, mute policies.Epoch) (last, highest *atomic.Uint64) {
	t.Helper()
	last, highest = new(atomic.Uint64), new(atomic.Uint64)
	conn := testkit.Must(grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials())))
	t.Cleanup(func() { conn.Close() })
	ads := testkit.Must(discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context(),
		grpc.WaitForReady(true)))
	testkit.NoError(t, ads.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: id}, TypeUrl: resources.RoutingType,
		ResourceNamesSubscribe: []string{resources.RoutingName("")},
	}))
	go func() {
		for {
			r, err := ads.Recv()
			if err != nil {
				return
			}
			reply := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}
			for _, res := range r.GetResources() {
				epoch := resources.RoutingEpoch(res.GetResource().GetValue())
				highest.Store(max(highest.Load(), uint64(epoch)))
				if epoch == mute {
					reply = nil
				} else if epoch == bad {
					reply.ErrorDetail = &rpcstatus.Status{Code: 13, Message: "cascade: no"}
				} else {
					last.Store(uint64(epoch))
				}
			}
			if reply != nil && ads.Send(reply) != nil {
				return
			}
		}
	}()
	return last, highest
}

// TestFollowerRefuses checks that a plan which a follower of the first group refuses is
// rolled back there and sent to no other follower, that the next plan reaches both, and that
// the status has their epochs.
func TestFollowerRefuses(t *testing.T) {
	groups := testkit.Must(resources.NewGroups([]resources.GroupRule{{Name: "canary", Nodes: []string{"canary*"}}}))
	p := newControlPlane(t, publish.Config{Groups: groups, Watch: 50 * time.Millisecond})
	p.serve(t, "", p.ads(p.ledger))
	backends := startBackends(t, "a", "b")
	submit := func(epoch policies.Epoch, low policies.Tokens) {
		p.publisher.Submit(backendView(backends, epoch, []policies.Tokens{low}, "a", "b"))
	}
	submit(1, 1000)
	canary, _ := startFollower(t, p.address, "canary-1", 2, 0)
	edge, highest := startFollower(t, p.address, "edge-1", 0, 0)
	p.waitForCurrent(t, 1, 2)
	submit(2, 2000)
	testkit.WaitForValue(t, "the rollback", p.publisher.Status, func(st publish.Status) bool {
		return len(st.Refused) == 1 && strings.HasSuffix(resources.RoutingType, "."+st.Refused[0].Type) && st.Refused[0].Node == "canary-1" && st.Phase == "idle" && st.Blocked
	})
	if canary.Load() != 1 || edge.Load() != 1 || highest.Load() != 1 {
		t.Errorf("epochs %d and %d; the other group was sent %d", canary.Load(), edge.Load(), highest.Load())
	}
	submit(3, 3000)
	p.waitForCurrent(t, 3, 2)
	if canary.Load() != 3 || edge.Load() != 3 {
		t.Errorf("epochs %d and %d, want 3", canary.Load(), edge.Load())
	}
}

// TestFollowersAreAwaited checks that no proxy gets the routes of a plan, and no other group the
// plan, before the followers of the group have acknowledged it.
func TestFollowersAreAwaited(t *testing.T) {
	p := newControlPlane(t, publish.Config{AckTimeout: time.Minute})
	p.serve(t, "", p.ads(p.ledger))
	backends := startBackends(t, "a", "b")
	p.publisher.Submit(backendView(backends, 1, []policies.Tokens{1000}, "a", "b"))
	quick, _ := startFollower(t, p.address, "quick", 0, 0)
	_, sent := startFollower(t, p.address, "mute", 0, 2)
	p.waitForCurrent(t, 1, 2)
	p.publisher.Submit(backendView(backends, 2, []policies.Tokens{2000}, "a", "b"))
	testkit.WaitFor(t, "the plan", func() bool { return quick.Load() == 2 && sent.Load() == 2 })
	if st := p.publisher.Status(); st.Phase != "add" || st.Groups[0].Epoch != 1 {
		t.Errorf("phase %s, epoch %d, while a follower has not answered", st.Phase, st.Groups[0].Epoch)
	}
}
