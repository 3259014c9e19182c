package publish_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/xds/cache"
	xdsclient "github.com/cascadeinfer/cascade/xds/client"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
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
	conn, err := grpc.NewClient(upstream, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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

// repeats returns how often a test does something: all with CASCADE_TEST_ALL
// ("make test-all"), few otherwise.
func repeats(few, all int) int {
	if os.Getenv("CASCADE_TEST_ALL") != "" {
		return all
	}
	return few
}

// TestFlipsWithLossyAcks makes 1,000 changes of boundaries (fewer without
// CASCADE_TEST_ALL), a tenth of which also change the stage of a replica, while
// ACKs get lost or late and nodes connect and disconnect. No request fails.
func TestFlipsWithLossyAcks(t *testing.T) {
	flips := repeats(30, 1000)
	backends := startBackends(t, "a", "b", "c", "d", "e", "f")
	shared, ledger := cache.New(cache.Config{}), publish.NewLedger(nil)
	publisher, err := publish.New(publish.Config{Cache: shared, Ledger: ledger, AckTimeout: 250 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, serverv3.NewServer(ctx, shared, ledger))
	var running sync.WaitGroup
	running.Go(func() { server.Serve(listener) })
	running.Go(func() { publisher.Run(ctx) })
	t.Cleanup(func() { cancel(); server.Stop(); running.Wait() })
	bad := startLossyRelay(t, listener.Addr().String())

	rng := rand.New(rand.NewPCG(1, 2))
	members := [][]string{{"a", "b"}, {"c", "d"}, {"e", "f"}}
	epoch := policies.Epoch(0)
	submit := func() {
		epoch++
		low := policies.Tokens(200 + rng.IntN(2000))
		stages := make([]string, len(members))
		for k, m := range members {
			stages[k] = strings.Join(m, " ")
		}
		publisher.Submit(backendView(backends, epoch, []policies.Tokens{low, low + policies.Tokens(200+rng.IntN(5000))}, stages...))
	}
	submit()

	boot := func(id, address string) *envoytest.Process {
		b, err := resources.Bootstrap(resources.BootstrapConfig{NodeID: id, ControlPlane: address})
		if err != nil {
			t.Fatal(err)
		}
		return envoytest.Start(t, envoytest.Config{Bootstrap: string(b), Concurrency: 1})
	}
	var load sync.WaitGroup
	var served, failed atomic.Int64
	stop := make(chan struct{})
	for _, id := range []string{"edge-1", "edge-2"} {
		c := newClient(t, boot(id, bad.address))
		for i := range 4 {
			mine := rand.New(rand.NewPCG(uint64(i), 3))
			load.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if _, _, err := c.post(1 + mine.IntN(30_000)); err != nil {
						if failed.Add(1) <= 5 {
							t.Errorf("%s: %v", id, err)
						}
					}
					served.Add(1)
					time.Sleep(time.Duration(mine.IntN(4)) * time.Millisecond)
				}
			})
		}
	}
	var nodes sync.WaitGroup
	for i := range 8 {
		mine := rand.New(rand.NewPCG(uint64(i), 4))
		nodes.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
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
			third = boot("edge-3", bad.address)
		}
		submit()
		st := policytest.WaitForValue(t, fmt.Sprint("the end of flip ", n), publisher.Status, func(st publish.Status) bool {
			if st.Err != nil {
				t.Fatal(st.Err)
			}
			return st.Phase == "idle" && st.Epoch == epoch
		})
		for _, node := range st.Nodes {
			if node.Fenced {
				fenced++
			}
		}
	}
	took := time.Since(began)
	close(stop)
	load.Wait()
	t.Logf("%d flips in %v, %d requests, %d failed; %d acknowledgements lost, %d late; nodes fenced after a flip: %d",
		flips, took.Round(time.Millisecond), served.Load(), failed.Load(), bad.lost.Load(), bad.delayed.Load(), fenced)
	if bad.lost.Load() == 0 || bad.delayed.Load() == 0 {
		t.Error("the relay lost or delayed no ACK")
	}
}

// runClient runs one node for a while.
func runClient(ctx context.Context, t *testing.T, id, address string, life time.Duration) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	c, err := xdsclient.New(xdsclient.Config{Conn: conn, NodeID: id, Watcher: ignoreUpdates{}})
	if err != nil {
		t.Error(err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, life)
	defer cancel()
	c.Run(ctx)
}

type ignoreUpdates struct{}

// Update implements client.Watcher.
func (ignoreUpdates) Update(*xdsclient.Snapshot) {}
