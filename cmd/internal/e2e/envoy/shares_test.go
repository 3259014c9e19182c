package envoy

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/engine/sim"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/server"
)

// requests is how many picks are compared.
var requests = testkit.Size(2500, 10_000)

const (
	workers = 4 // connections to Envoy, whose threads balance each for itself
	model   = "m"
	// idHeader names the replica that answers.
	idHeader = "x-test-replica"
	// sigmas is how many standard deviations of a binomial distribution may lie between both shares.
	sigmas = 5
)

// weights are those of the stage's replicas; they are among weights.Steps.
var weights = []uint32{50, 71, 100, 141, 200}

// drained is the replica that drains.
const drained = 3

// TestEnvoyShares sends requests through a real Envoy and picks as many as the simulator does. Counts of a
// replica that gets none must be equal, all others within the bound.
func TestEnvoyShares(t *testing.T) {
	envoytest.Binary(t)
	replicas := startReplicas(t)
	for _, draining := range []bool{false, true} {
		envoy := startEnvoy(t, replicas, draining)
		weight := func(i int) uint32 {
			if draining && i == drained {
				return 0
			}
			return weights[i]
		}
		members, robin := make([]int, len(weights)), sim.NewRoundRobin(len(weights))
		for i := range members {
			members[i] = i
		}
		t.Run(fmt.Sprintf("draining %v", draining), func(t *testing.T) {
			real, want := send(t, envoy), make([]int, requests)
			for i := range want {
				want[i] = robin.Pick(members, weight)
			}
			compare(t, count(real), count(want))
		})
		envoy.Stop()
	}
}

// count returns how many of the picks are of each replica.
func count(picks []int) []int {
	counts := make([]int, len(weights))
	for _, i := range picks {
		counts[i]++
	}
	return counts
}

// compare logs and checks the shares of all replicas.
func compare(t *testing.T, real, simulated []int) {
	t.Helper()
	for i, n := range real {
		p := float64(simulated[i]) / float64(requests)
		bound := sigmas * math.Sqrt(2*p*(1-p)/float64(requests))
		t.Logf("replica %d: Envoy %.2f %%, simulated %.2f %%, bound ±%.2f points", i, 100*float64(n)/float64(requests), 100*p, 100*bound)
		if off := math.Abs(float64(n)/float64(requests) - p); off > bound || requests == 10_000 && off > 0.03 {
			t.Errorf("replica %d: %d of %d requests, simulated %d", i, n, requests, simulated[i])
		}
	}
}

// send sends the requests, and returns which replica answered each.
func send(t *testing.T, envoy *envoytest.Process) []int {
	t.Helper()
	url := "http://" + envoy.Listener("test")
	picks, errs := make([]int, requests), make([]error, workers)
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			transport := &http.Transport{MaxConnsPerHost: 1} // its own connection
			defer transport.CloseIdleConnections()
			for i := w; i < requests && errs[w] == nil; i += workers {
				picks[i], errs[w] = ask(&http.Client{Transport: transport}, url)
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		testkit.NoError(t, err)
	}
	return picks
}

// ask sends one request, and returns which replica answered.
func ask(client *http.Client, url string) (replica int, err error) {
	resp, err := client.Get(url)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if _, err := fmt.Sscanf(resp.Header.Get(idHeader), "%d", &replica); err != nil {
		return 0, fmt.Errorf("%s: %w", resp.Status, err)
	}
	return replica, nil
}

// startReplicas starts the stage's replicas, which answer with their number, and returns their addresses.
func startReplicas(t *testing.T) (addresses []string) {
	t.Helper()
	for i := range weights {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(idHeader, fmt.Sprint(i))
		}))
		s.Config.Protocols = new(http.Protocols)
		s.Config.Protocols.SetUnencryptedHTTP2(true)
		s.Start()
		t.Cleanup(s.Close)
		addresses = append(addresses, s.Listener.Addr().String())
	}
	return addresses
}

// startEnvoy runs an Envoy that has the resources of a stage of these replicas.
func startEnvoy(t *testing.T, replicas []string, draining bool) *envoytest.Process {
	t.Helper()
	view := resources.View{Models: []resources.Model{{Name: model, Context: 131_072}}}
	var ids []policies.ReplicaID
	for i, address := range replicas {
		e := resources.Endpoint{
			Replica: policies.Replica{ID: policies.ReplicaID(fmt.Sprint("r", i)), Model: model, Address: address},
			Weight:  weights[i],
		}
		if draining && i == drained {
			e.Health = resources.Draining
		}
		ids, view.Endpoints = append(ids, e.ID), append(view.Endpoints, e)
	}
	view.Plans = []policies.Plan{policies.OneStagePlan(model, ids)}
	sets := cache.New(cache.Config{})
	sets.Set("", testkit.Must(resources.Build(view)))
	xds := testkit.Must(server.New(server.Config{Cache: sets}))
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	s, ctx := grpc.NewServer(), context.WithoutCancel(t.Context())
	xds.Register(ctx, s)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); testkit.NoError(t, <-ended) })
	return envoytest.Start(t, envoytest.Config{Bootstrap: bootstrap(t, l.Addr().String())})
}

// bootstrap returns the production bootstrap with a listener of the test in place of the control plane's.
func bootstrap(t *testing.T, controlPlane string) string {
	t.Helper()
	var boot map[string]any
	data := testkit.Must(resources.Bootstrap(resources.BootstrapConfig{NodeID: "shares", ControlPlane: controlPlane}))
	testkit.NoError(t, json.Unmarshal(data, &boot))
	object := func(of map[string]any, keys ...string) map[string]any {
		for _, key := range keys {
			for name := range of {
				if strings.EqualFold(strings.ReplaceAll(name, "_", ""), key) {
					key = name
				}
			}
			of = of[key].(map[string]any)
		}
		return of
	}
	for _, name := range []string{"lds_config", "ldsConfig"} {
		delete(object(boot, "dynamicResources"), name)
	}
	var listener any
	testkit.NoError(t, json.Unmarshal([]byte(listenerJSON), &listener))
	object(boot, "staticResources")["listeners"] = []any{listener}
	return string(testkit.Must(json.Marshal(boot)))
}

var listenerJSON = `{
  "name": "test",
  "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
  "filter_chains": [{"filters": [{"name": "http", "typed_config": {
    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
    "stat_prefix": "test",
    "route_config": {"validate_clusters": false, "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{
      "match": {"prefix": "/"},
      "route": {"cluster": "` + resources.ClusterName(model, 0) + `"}
    }]}]},
    "http_filters": [{"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]
  }}]}]
}`
