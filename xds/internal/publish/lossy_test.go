package publish_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// lossyRelay forwards streams between nodes and their control plane, and loses
// or delays ACKs.
type lossyRelay struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	upstream discoveryv3.AggregatedDiscoveryServiceClient
	address  string

	mu            sync.Mutex
	rng           *rand.Rand
	lost, delayed atomic.Int64
}

func startLossyRelay(t *testing.T, upstream string) *lossyRelay {
	t.Helper()
	conn := testkit.Must(grpc.NewClient(upstream, grpc.WithTransportCredentials(insecure.NewCredentials())))
	listener := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	r := &lossyRelay{upstream: discoveryv3.NewAggregatedDiscoveryServiceClient(conn), address: listener.Addr().String(), rng: rand.New(rand.NewPCG(7, 7))}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, r)
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(listener) })
	t.Cleanup(func() { server.Stop(); wg.Wait(); conn.Close() })
	return r
}

// DeltaAggregatedResources forwards one node's stream.
func (r *lossyRelay) DeltaAggregatedResources(down discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	ctx, cancel := context.WithCancel(down.Context())
	defer cancel()
	up, err := r.upstream.DeltaAggregatedResources(ctx)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		for {
			resp, err := up.Recv()
			if err != nil || down.Send(resp) != nil {
				return
			}
		}
	})
	defer wg.Wait()
	defer cancel()
	for {
		req, err := down.Recv()
		switch {
		case errors.Is(err, io.EOF) || ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case r.dropsAck(req):
		default:
			if up.Send(req) != nil {
				return nil
			}
		}
	}
}

// dropsAck loses one ACK in a hundred and delays another one, with all that
// follows it on its stream.
func (r *lossyRelay) dropsAck(req *discoveryv3.DeltaDiscoveryRequest) bool {
	if req.GetResponseNonce() == "" || req.GetErrorDetail() != nil || len(req.GetResourceNamesSubscribe())+len(req.GetResourceNamesUnsubscribe()) > 0 {
		return false
	}
	r.mu.Lock()
	n, wait := r.rng.IntN(100), time.Duration(20+r.rng.IntN(280))*time.Millisecond
	r.mu.Unlock()
	switch n {
	case 0:
		r.lost.Add(1)
		return true
	case 1:
		r.delayed.Add(1)
		time.Sleep(wait)
	}
	return false
}

// TestFlipsWithLossyAcks makes 1,000 changes of boundaries (fewer without
// CASCADE_TEST_ALL), a tenth of which also change the stage of a replica and a
// seventh the number of stages, while ACKs get lost or late and nodes connect and disconnect. No request fails.
func TestFlipsWithLossyAcks(t *testing.T) {
	flips := testkit.Size(30, 1000)
	backends := startBackends(t, "a", "b", "c", "d", "e", "f")
	p := newControlPlane(t, publish.Config{AckTimeout: 250 * time.Millisecond})
	p.serve(t, "", p.ads(p.ledger))
	bad := startLossyRelay(t, p.address)

	rng := rand.New(rand.NewPCG(1, 2))
	members := [][]string{{"a", "b"}, {"c", "d"}, {"e", "f"}}
	epoch := policies.Epoch(0)
	submit := func() {
		epoch++
		low := policies.Tokens(200 + rng.IntN(2000))
		cuts := []policies.Tokens{low, low + policies.Tokens(200+rng.IntN(5000))}
		stages := make([]string, len(members))
		for k, m := range members {
			stages[k] = strings.Join(m, " ")
		}
		if epoch%7 == 0 { // two stages become one
			stages, cuts = []string{stages[0], stages[1] + " " + stages[2]}, cuts[:1]
		}
		p.publisher.Submit(backendView(backends, epoch, cuts, stages...))
	}
	submit()
	stop := startLoad(t, newClient(t, startEnvoy(t, "edge-1", bad.address)), newClient(t, startEnvoy(t, "edge-2", bad.address)))
	ctx, cancel := context.WithCancel(context.Background())
	var nodes sync.WaitGroup
	for i := range 8 {
		mine := rand.New(rand.NewPCG(uint64(i), 4))
		nodes.Go(func() {
			for ctx.Err() == nil {
				runClient(ctx, t, fmt.Sprintf("node-%d", i), bad.address, time.Duration(300+mine.IntN(3000))*time.Millisecond)
			}
		})
	}
	t.Cleanup(func() { cancel(); nodes.Wait() })
	var third *envoytest.Process

	began, fenced := time.Now(), 0
	for n := range flips {
		if n%10 == 9 { // a replica changes its stage
			from := rng.IntN(3)
			for len(members[from]) < 2 {
				from = (from + 1) % 3
			}
			to := (from + 1 + rng.IntN(2)) % 3
			members[to], members[from] = append(members[to], members[from][0]), members[from][1:]
		}
		if n%(flips/5) == flips/10 { // an Envoy without clients restarts
			if third != nil {
				third.Stop()
			}
			third = startEnvoy(t, "edge-3", bad.address)
		}
		submit()
		testkit.WaitForValue(t, fmt.Sprintf("the end of flip %d", n), p.publisher.Status, func(st publish.Status) bool {
			if st.Err != nil {
				t.Fatal(st.Err)
			}
			if st.Phase != "idle" || st.Epoch != epoch {
				return false
			}
			for _, node := range st.Nodes {
				if node.Fenced {
					fenced++
				}
			}
			return true
		})
	}
	took := time.Since(began)
	t.Logf("%d flips in %v, %d requests; %d acknowledgements lost, %d late; nodes fenced after a flip: %d",
		flips, took.Round(time.Millisecond), stop(), bad.lost.Load(), bad.delayed.Load(), fenced)
	if bad.lost.Load() == 0 || bad.delayed.Load() == 0 {
		t.Error("the relay lost or delayed no ACK")
	}
}

// runClient runs one node for a while: one that acknowledges the tables, and every second one a
// follower of the plan.
func runClient(ctx context.Context, t *testing.T, id, address string, life time.Duration) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, life)
	defer cancel()
	if id[len(id)-1]%2 == 0 {
		if c, err := routing.New(routing.Config{Conn: conn, NodeID: id}); err != nil {
			t.Error(err)
		} else {
			c.Run(ctx)
		}
		return
	}
	ads, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return
	}
	endpoints := make([]string, policies.MaxStages)
	for k := range endpoints {
		endpoints[k] = resources.EndpointName("m", k)
	}
	node := &corev3.Node{Id: id}
	for _, r := range []*discoveryv3.DeltaDiscoveryRequest{
		{Node: node, TypeUrl: resources.ClusterType}, {TypeUrl: resources.EndpointType, ResourceNamesSubscribe: endpoints},
		{TypeUrl: resources.ListenerType}, {TypeUrl: resources.RouteType, ResourceNamesSubscribe: []string{resources.RouteName}},
	} {
		if ads.Send(r) != nil {
			return
		}
	}
	for {
		r, err := ads.Recv()
		if err != nil || ads.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}) != nil {
			return
		}
	}
}
