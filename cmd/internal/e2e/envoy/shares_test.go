package envoy

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/engine/sim"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// requests is how many picks are compared.
var requests = testkit.Size(2500, 10_000)

const (
	workers = 4 // connections to Envoy, whose threads balance each for itself
	model   = "m"
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
	for _, draining := range []bool{false, true} {
		r := startHarnessOf(t, weighted(draining), "test", func(control string) string { return bootstrap(t, control) })
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
			real, want := r.pick(t), make([]int, requests)
			for i := range want {
				want[i] = robin.Pick(members, weight)
			}
			compare(t, count(real), count(want))
		})
		r.envoy.Stop()
	}
}

// weighted returns a view of one stage, whose replicas r0, r1, … have the weights.
func weighted(draining bool) resources.View {
	v := resources.View{Models: []resources.Model{{Name: model, Context: 131_072}}}
	var ids []policies.ReplicaID
	for i := range weights {
		e := resources.Endpoint{Replica: policies.Replica{ID: policies.ReplicaID(fmt.Sprint("r", i)), Model: model}, Weight: weights[i]}
		if draining && i == drained {
			e.Health = resources.Draining
		}
		ids, v.Endpoints = append(ids, e.ID), append(v.Endpoints, e)
	}
	v.Plans = []policies.Plan{policies.OneStagePlan(model, ids)}
	return v
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

// pick sends the requests, and returns which replica answered each.
func (r *harness) pick(t *testing.T) []int {
	t.Helper()
	picks, errs := make([]int, requests), make([]error, workers)
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			own := *r
			own.client = http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}} // its own connection
			defer own.client.CloseIdleConnections()
			for i := w; i < requests && errs[w] == nil; i += workers {
				got, err := own.send(http.MethodGet, "m.test", nil)
				if _, failed := fmt.Sscanf(got.By, "r%d", &picks[i]); err == nil && failed != nil {
					err = fmt.Errorf("%d: %s", got.Status, got.Raw)
				}
				errs[w] = err
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		testkit.NoError(t, err)
	}
	return picks
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
