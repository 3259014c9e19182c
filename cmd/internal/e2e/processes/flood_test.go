package processes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/loglimit"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// narrow are limits far above the use of a small fleet's Envoy and migrators.
var narrow = config.ProxyLimits{Streams: 4, NodeNames: 96, Rate: 5, Nodes: 8}

// refusal waits for the end of a stream and returns why it ended.
func refusal(s grpc.BidiStreamingClient[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]) error {
	for {
		if _, err := s.Recv(); err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("it ends well")
			}
			return err
		}
	}
}

// flood is a client that exceeds a control plane's limits.
type flood struct {
	ads discoveryv3.AggregatedDiscoveryServiceClient
	// refused counts its streams that ended because of a limit, ended those that ended for another
	// reason.
	refused, ended atomic.Int64
}

// ask opens a stream of a node and sends requests for endpoints by name, names of them per request.
func (f *flood) ask(ctx context.Context, node string, requests, names int) {
	s, err := f.ads.DeltaAggregatedResources(ctx)
	for i := 0; i < requests && err == nil; i++ {
		r := &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: node}, TypeUrl: resources.EndpointType}
		for j := range names {
			r.ResourceNamesSubscribe = append(r.ResourceNamesSubscribe, fmt.Sprintf("nothing/%d/%d", i, j))
		}
		err = s.Send(r)
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = refusal(s)
	}
	switch {
	case ctx.Err() != nil, status.Code(err) == codes.DeadlineExceeded:
	case status.Code(err) == codes.ResourceExhausted:
		f.refused.Add(1)
	default:
		f.ended.Add(1)
	}
}

// TestFloods runs clients that exceed every limit of control.limits at once: the control plane
// rejects them and logs each once a minute, and neither Envoy nor any other client is affected.
func TestFloods(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	f := newFleet(t, setup{envoy: true, replicas: 3, edit: func(c *config.Fleet) { c.Control.Limits = narrow }})
	load := f.calmLoad()
	load.WaitForRequests(5)
	connections := func() string {
		return fmt.Sprint(f.envoy.Stats(`^cluster\.cascade-xds\.(upstream_cx_total|upstream_rq_total)$|^control_plane\.connected_state$`))
	}
	before := connections()

	conn, err := grpc.NewClient(f.file.Control.Listen, grpc.WithTransportCredentials(insecure.NewCredentials()))
	testkit.NoError(t, err)
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := time.Now()
	var all sync.WaitGroup
	ways := map[string]*flood{}
	// With this pause, each flood exceeds its limit and costs the host little. The slow tests flood without one.
	pause := tick
	if everything {
		pause = 0
	}
	again := func(name string, workers int, once func(f *flood)) {
		x := &flood{ads: discoveryv3.NewAggregatedDiscoveryServiceClient(conn)}
		ways[name] = x
		for range workers {
			all.Go(func() {
				for ctx.Err() == nil {
					once(x)
					time.Sleep(pause)
				}
			})
		}
	}
	again("requests", 2, func(x *flood) { x.ask(ctx, "requests", 4*20*narrow.Rate, 0) })
	again("names", 2, func(x *flood) { x.ask(ctx, "names", 1, narrow.NodeNames+1) })
	again("streams", 3*narrow.Streams, func(x *flood) {
		// A stream within the limits is not rejected: the client closes it.
		short, end := context.WithTimeout(ctx, 5*tick)
		defer end()
		x.ask(short, "streams", 1, 1)
	})
	refusedOften := func() bool {
		for _, x := range ways {
			if x.refused.Load() < 20 {
				return false
			}
		}
		return true
	}
	f.WaitFor("the floods of three nodes are refused", refusedOften)
	var n atomic.Int64 // number of nodes, which all exceed the limit by now
	again("nodes", 2, func(x *flood) { x.ask(ctx, fmt.Sprint("invented-", n.Add(1)), 1, narrow.NodeNames+1) })
	f.WaitFor("every flood is refused", refusedOften)

	// Meanwhile the planner works, and Envoy applies its plans.
	f.cascade("drain", "r0", "--wait", "--timeout", patience.String())
	reached := func(e policies.Epoch) func(control.Status) bool {
		return func(s control.Status) bool { return s.Epoch >= e && envoyHasPlan("edge")(s) }
	}
	f.awaitStatus("the Envoy has the plan without r0", reached(2))
	f.cascade("drain", "--undo", "r0")
	f.awaitStatus("the Envoy has the plan with r0", reached(3))
	load.WaitForRequests(10)
	cancel()
	all.Wait()
	for name, x := range ways {
		t.Logf("%s: %d streams refused", name, x.refused.Load())
		if x.ended.Load() > 0 {
			t.Errorf("%s: %d streams ended otherwise", name, x.ended.Load())
		}
	}
	load.Stop()
	load.Report()
	if after := connections(); after != before {
		t.Errorf("the Envoy had to come again: %s, before %s", after, before)
	}
	text := f.control.Log.String()
	minutes := 1 + int(time.Since(began)/loglimit.Interval)
	most := minutes * loglimit.PerSubject
	// A node that was not admitted is not trusted to be that node: the log names its address.
	for _, who := range []string{"requests", "names", "127.0.0.1"} {
		if n := strings.Count(text, `msg="xds stream refused" client=`+who+" "); n < 1 || n > most {
			t.Errorf("node %s is logged %d times, want %d at most", who, n, most)
		}
	}
	if n := strings.Count(text, "xds stream refused"); n > minutes*(loglimit.PerEvent+1) {
		t.Errorf("%d lines are logged of refusals", n)
	}
	page, err := f.Get("http://" + f.file.Control.Admin + "/metrics")
	testkit.NoError(t, err)
	if v, _ := gauge(page, "cascade_xds_refused_total"); v < 80 {
		t.Errorf("cascade_xds_refused_total is %v", v)
	}
	if n := len(text); n > minutes*64<<10 {
		t.Errorf("the control plane has written %d bytes", n)
	}
}
