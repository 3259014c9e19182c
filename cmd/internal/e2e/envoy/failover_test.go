package envoy

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestFailover checks on a real Envoy that many requests at once, replicas that die, and a stage that has lost both
// replicas fail no request.
func TestFailover(t *testing.T) {
	v := view()
	v.Models, v.Settings.Estimator = v.Models[:1], resources.ExtProc
	v.Settings.ConnectTimeout = time.Minute // a dial that a busy machine delays is no dead replica
	v.Endpoints = nil
	for i := range 6 {
		v.Endpoints = append(v.Endpoints, resources.Endpoint{Replica: policies.Replica{ID: policies.ReplicaID(fmt.Sprint("m", i)), Model: "m"}})
	}
	v.Plans = []policies.Plan{{Model: "m", Epoch: 1, Stages: []policies.Stage{
		{Low: 0, High: 1000, Replicas: []policies.ReplicaID{"m0", "m1", "m2"}},
		{Low: 1000, High: 4000, Replicas: []policies.ReplicaID{"m3", "m4"}},
		{Low: 4000, High: policies.Unbounded, Replicas: []policies.ReplicaID{"m5"}},
	}}}
	r := startHarness(t, v)
	// send sends requests of about that many tokens, and returns who served them.
	send := func(tokens int) map[string]int {
		t.Helper()
		var mu sync.Mutex
		by := make(map[string]int)
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				got, err := r.send("POST", "m.test", chunked{bytes.NewReader(completion("m", 4*tokens))})
				mu.Lock()
				defer mu.Unlock()
				if by[got.By]++; err != nil || got.Status != 200 {
					t.Errorf("request %d of %d tokens: %+v, %v", i, tokens, got, err)
				}
			})
		}
		wg.Wait()
		return by
	}
	only := func(by map[string]int, replicas ...string) {
		t.Helper()
		for name := range by {
			if !slices.Contains(replicas, name) {
				t.Errorf("served by %v, want only %v", by, replicas)
				return
			}
		}
	}
	by := send(128)
	if only(by, "m0", "m1", "m2"); len(by) != 3 {
		t.Errorf("served by %v, want all of the stage", by)
	}
	only(send(1500), "m3", "m4")
	only(send(5000), "m5")

	r.kills["m0"]()
	only(send(128), "m1", "m2", "m3", "m4")
	// The next longer stage serves for one that has lost both replicas.
	r.kills["m3"]()
	r.kills["m4"]()
	only(send(1500), "m5")
}
