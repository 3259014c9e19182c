package wiring

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestHeterogeneousReplicas: replicas that differ are planned, traded and emulated by
// what each states, and priced by the model's profile at the smallest width.
func TestHeterogeneousReplicas(t *testing.T) {
	f, err := config.Read(strings.NewReader(`models:
- {name: m, context: 4096, profile: h200-llama-3.1-8b, adapters: [{name: sql, replicas: [r1]}, {name: all}]}
replicas:
- {id: r0, address: "127.0.0.1:9000", peer: "127.0.0.1:9100", engine: "http://127.0.0.1:8000", tp: 2, kv_tokens: 90000, batch: 64}
- {id: r1, address: "127.0.0.1:9001", peer: "127.0.0.1:9101", engine: "http://127.0.0.1:8001", profile: rtxpro6000-llama-3.1-8b, kv_tokens: 30000, batch: 32}
`))
	testkit.NoError(t, err)
	w, err := Resolve(f, t.TempDir())
	testkit.NoError(t, err)
	registry := w.Registry()
	for i, want := range []struct {
		kv, batch int64
		adapters  []string
	}{{90000, 64, []string{"all"}}, {30000, 32, []string{"sql", "all"}}} {
		if c := registry[i].Capacity; int64(c.KV) != want.kv || int64(c.Batch) != want.batch || !slices.Equal(registry[i].Adapters, want.adapters) {
			t.Errorf("%s: %+v, adapters %q; want %+v", registry[i].ID, c, registry[i].Adapters, want)
		}
	}
	quiet := slog.New(slog.DiscardHandler)
	if c := w.Market(f.Replicas[1]); c.Capacity != 30000 {
		t.Errorf("the market counts %d tokens of KV", c.Capacity)
	}
	e := w.Engine(f.Replicas[1], quiet)
	if e.KVTokens != 30000 || e.MaxBatch != 32 || e.Profile.Name == w.Profiles["m"].Name || !slices.Equal(e.Adapters, []string{"sql", "all"}) {
		t.Errorf("the emulated engine: %+v", e)
	}
	// What replicas experience comes from the QoE model, in plans and in refined boundaries.
	if got, want := w.Rules().Models[0].QoE, w.Profiles["m"].QoEModel(); got != want || got.D2 > w.Profiles["m"].D2/100 {
		t.Errorf("the planner's QoE is %+v, want %+v", got, want)
	}
	if got, want := w.Market(w.Fleet.Replicas[0]).QoE, w.Profiles["m"].TensorParallel(w.Fleet.Replicas[0].TP).QoEModel(); got != want {
		t.Errorf("the market's QoE is %+v, want %+v", got, want)
	}
	if got, want := w.Rules().Models[0].Cost, w.Profiles["m"].TensorParallel(1).Cost(); got != want {
		t.Errorf("priced by %+v, want %+v", got, want)
	}
}
