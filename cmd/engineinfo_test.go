package cmd_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/dialect/sglang"
	"github.com/cascadeinfer/cascade/migrator/dialect/vllm"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/policies"
)

// TestEmulatorStatesWhatVLLMDoes asks an emulated engine what it is, as a front end asks vLLM.
func TestEmulatorStatesWhatVLLMDoes(t *testing.T) {
	c := emulator.Config{Model: "m", Profile: testkit.Must(cost.Builtin("h100-llama-3.1-8b")), KVTokens: 5000, BlockTokens: 32, Context: 4096, Adapters: []string{"lora"}}
	before := time.Now()
	engine := testkit.Must(emulator.New(c))
	get := func(_ context.Context, path string) (*http.Response, error) {
		w := httptest.NewRecorder()
		engine.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Result(), nil
	}
	info, spoken, err := dialect.Ask(t.Context(), get, []dialect.Dialect{sglang.Dialect{}, vllm.Dialect{}})
	testkit.NoError(t, err)
	if spoken != dialect.Dialect(vllm.Dialect{}) || info.Version == "" || info.BlockTokens != 32 || info.KVTokens != 4992 || info.Connector != engineinfo.Unknown || info.DraftTokens != 0 {
		t.Errorf("learnt %+v", info)
	}
	if want := []engineinfo.Model{{Name: "m", Context: 4096}, {Name: "lora", Adapter: true}}; !slices.Equal(info.Models, want) {
		t.Errorf("models %v, want %v", info.Models, want)
	}
	m, err := spoken.Load(testkit.Must(dialect.Get(get).Read(t.Context(), "/metrics")))
	testkit.NoError(t, err)
	if want := (policies.EngineLoad{Capacity: 4992}); m.Load != want {
		t.Errorf("load %+v, want %+v", m.Load, want)
	}
	if at := time.Since(before).Seconds(); m.StartedAt < float64(before.UnixMilli())/1e3-1 || at < 0 {
		t.Errorf("started at %f, not after %v", m.StartedAt, before)
	}
}
