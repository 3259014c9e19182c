package control

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/internal/grpctest"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// together is how many of the longest tests run in parallel, on any host: they wait for reports.
const together = "6"

func TestMain(m *testing.M) {
	// Set it before the command line is parsed, which may override it.
	if err := flag.Set("test.parallel", together); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// waitTimeout bounds every wait of these tests. None of them waits for a fixed
// time.
const waitTimeout = time.Minute

const context32k = 32768

// fakeReplica is a replica of a test: a gRPC server that returns its id, and a
// migrator that reports load.
type fakeReplica struct {
	policies.Replica

	mu     sync.Mutex
	report *api.LoadReport
	// served and refused are by how much each report raises the counters of requests.
	served, refused uint64
}

// newFakeReplica starts a replica's server; it reports nothing yet.
func newFakeReplica(t *testing.T, id string) *fakeReplica {
	t.Helper()
	return &fakeReplica{
		Replica: policies.Replica{ID: policies.ReplicaID(id), Model: "m", Address: grpctest.StartReplica(t, id), Capacity: policies.Capacity{KV: 400_000, Batch: 256}},
		report:  &api.LoadReport{Replica: id, Model: "m", EngineReady: true, Load: &api.Load{}},
	}
}

// setReport changes what the replica reports from now on.
func (r *fakeReplica) setReport(edit func(*api.LoadReport)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	edit(r.report)
}

// reportTo sends a report every few milliseconds until ctx ends.
func (r *fakeReplica) reportTo(ctx context.Context, t *testing.T, wg *sync.WaitGroup, address string) {
	t.Helper()
	conn := testkit.Must(grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials())))
	wg.Go(func() {
		defer conn.Close()
		stream, err := api.NewFleetClient(conn).Report(ctx)
		if err != nil {
			if ctx.Err() == nil {
				t.Errorf("report: %v", err)
			}
			return
		}
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			r.mu.Lock()
			r.report.Sequence++
			if r.report.RequestsRefused += r.refused; r.served > 0 {
				if r.report.Flow == nil {
					skewReport(r.report)
				}
				r.report.Flow.Seen += r.served
			}
			err := stream.Send(r.report)
			r.mu.Unlock()
			if err == nil {
				_, err = stream.Recv()
			}
			if err != nil {
				if ctx.Err() == nil {
					t.Logf("report of %s: %v", r.ID, err)
				}
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
}

// fastRules are the rules of a fleet at high speed, which plans every 100 ms,
// with a cost that makes stages worthwhile for skewed mixes.
func fastRules() fleet.Rules {
	return fleet.Rules{
		Speed: 100, Seen: 1,
		Models: []fleet.Model{{
			Model: resources.Model{Name: "m", Context: context32k},
			QoE:   policytest.H200QoE(), Cost: policies.Cost{D0: 0.008, D1: 5e-5, D2: 6e-5, D3: 1e-9, D4: 6e-8, Kappa: 4},
		}},
	}
}

// skewReport makes a report count many short requests and a few long ones.
func skewReport(m *api.LoadReport) {
	edges := policies.BucketEdges(context32k, 4)
	n := len(edges)
	f := &api.Flow{Arrivals: make([]float64, n), Tokens: make([]float64, n), Reads: make([]float64, n), Prefill: make([]float64, n), Prefill2: make([]float64, n), Weight: make([]float64, n), Crossings: make([]float64, n), Seen: 5000}
	for _, e := range edges {
		f.Edges = append(f.Edges, int64(e))
	}
	add := func(rate float64, input, output policies.Tokens) {
		b := policies.BucketOf(edges, input)
		f.Arrivals[b] += rate
		f.Prefill[b] += rate * float64(input)
		f.Prefill2[b] += rate * float64(input*input)
		for l := input + 1; l <= input+output; l++ {
			c := policies.BucketOf(edges, l)
			f.Tokens[c] += rate
			f.Reads[c] += rate * float64(l)
			f.Weight[c] += rate / float64(output)
			if l == edges[c] {
				f.Crossings[c] += rate
			}
		}
	}
	add(4, 200, 150)
	add(0.15, 20000, 400)
	m.Flow = f
}

// runningControl is a Control that runs.
type runningControl struct {
	*Control
	stop func() // ends it and waits
}

// startControl runs a Control on free ports.
func startControl(t *testing.T, cfg Config) *runningControl {
	t.Helper()
	cfg.Listen, cfg.Admin = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Settings.Listen = "127.0.0.1:0"
	if cfg.Proxies == nil {
		cfg.Proxies = []string{"*"}
	}
	cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	c := testkit.Must(New(cfg))
	c.slots.interval = 20 * time.Millisecond
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return &runningControl{Control: c, stop: testkit.Run(t, c.Run)}
}

// fakeFleet is replicas that report to a running Control.
type fakeFleet struct {
	replicas []*fakeReplica
	list     []policies.Replica
}

func newFakeFleet(t *testing.T, n int) *fakeFleet {
	f := new(fakeFleet)
	for i := range n {
		r := newFakeReplica(t, fmt.Sprintf("r%d", i))
		f.replicas = append(f.replicas, r)
		f.list = append(f.list, r.Replica)
	}
	return f
}

// startReports starts the reports of all replicas; the returned function ends
// them.
func (f *fakeFleet) startReports(t *testing.T, c *runningControl) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	wg := new(sync.WaitGroup)
	for _, r := range f.replicas {
		r.reportTo(ctx, t, wg, c.Addr().String())
	}
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stop)
	return stop
}

// setReports edits the reports of all replicas.
func (f *fakeFleet) setReports(edit func(*api.LoadReport)) {
	for _, r := range f.replicas {
		r.setReport(edit)
	}
}
