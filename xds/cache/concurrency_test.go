package cache_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/xds/cache"
)

// memoryStream is a delta stream in memory.
type memoryStream struct {
	grpc.ServerStream
	ctx       context.Context
	requests  chan *discoveryv3.DeltaDiscoveryRequest
	responses chan *discoveryv3.DeltaDiscoveryResponse
}

func (p *memoryStream) Context() context.Context { return p.ctx }

func (p *memoryStream) Recv() (*discoveryv3.DeltaDiscoveryRequest, error) {
	select {
	case r := <-p.requests:
		return r, nil
	case <-p.ctx.Done():
		return nil, io.EOF
	}
}

func (p *memoryStream) Send(r *discoveryv3.DeltaDiscoveryResponse) error {
	select {
	case p.responses <- r:
		return nil
	case <-p.ctx.Done():
		return errors.New("the client is gone")
	}
}

// TestConcurrency has clients connect, disconnect, acknowledge and refuse while
// sets change. In the end every client that stayed has the last set. It is for
// the race detector.
func TestConcurrency(t *testing.T) {
	const clients, rounds = 16, 100
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := cache.New(cache.Config{Group: func(n *corev3.Node) string { return n.GetId()[:1] }})
	server := serverv3.NewServer(ctx, c, nil)
	last := resource(rds, "r", fmt.Sprint(rounds-1)).Version
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for life := range 4 {
				p := &memoryStream{requests: make(chan *discoveryv3.DeltaDiscoveryRequest, 100), responses: make(chan *discoveryv3.DeltaDiscoveryResponse, 100)}
				streamCtx, end := context.WithCancel(ctx)
				p.ctx = streamCtx
				done := make(chan error, 1)
				go func() { done <- server.DeltaStreamHandler(p, "") }()
				p.requests <- &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: fmt.Sprintf("%c%d", 'a'+i%3, i)}, TypeUrl: cds}
				p.requests <- &discoveryv3.DeltaDiscoveryRequest{TypeUrl: eds, ResourceNamesSubscribe: []string{"x", "y"}}
				p.requests <- &discoveryv3.DeltaDiscoveryRequest{TypeUrl: rds, ResourceNamesSubscribe: []string{"r"}}
				for n := 0; ; n++ {
					r := <-p.responses
					p.requests <- &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce}
					if life < 3 && n == 10*i%40 {
						break // disconnects without a reply
					}
					if r.TypeUrl == rds && r.Resources[0].Version == last {
						break
					}
				}
				end()
				<-done
			}
		})
	}
	for i := range rounds {
		s := setOf(t, fmt.Sprintf("cds:a=%d", i/10), fmt.Sprintf("eds:x=%d", i), "eds:y=1", fmt.Sprintf("rds:r=%d", i))
		c.Set("", s)
		if i%7 == 0 || i == rounds-1 {
			c.Set("b", s)
		}
		c.Unanswered([]string{eds, rds}, map[string]bool{})
		runtime.Gosched()
	}
	wg.Wait()
	cancel()
	if n := c.Watches(); n != 0 {
		t.Errorf("%d watches left", n)
	}
}
