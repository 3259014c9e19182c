package emulator

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// The failure cases that were measured on vLLM 0.32.0.
func TestHandoffFailures(t *testing.T) {
	const n = 500
	ids := promptOf(n, 1)
	for _, tc := range []struct {
		name  string
		lease time.Duration
		ids   []model.Token // of B's prompt
		// between runs after the handoff leg.
		between func(t *testing.T, a *Engine, params map[string]any)
		status  int
		wrong   bool // the ids
		took    time.Duration
		sources string
	}{
		{
			name: "healthy", ids: ids, status: 200, sources: "compute 0, local 0, external 500",
		}, {
			name: "unknown engine at a dead port", ids: ids,
			between: func(_ *testing.T, _ *Engine, p map[string]any) { p["remote_engine_id"], p["remote_port"] = "X", 9 },
			status:  200, took: 5 * time.Second, sources: "compute 500, local 0, external 0",
		}, {
			name: "another engine at the port", ids: ids,
			between: func(_ *testing.T, _ *Engine, p map[string]any) { p["remote_engine_id"] = "X" },
			status:  200, sources: "compute 500, local 0, external 0",
		}, {
			name: "unknown request", ids: ids,
			between: func(_ *testing.T, _ *Engine, p map[string]any) { p["remote_request_id"] = "X" },
			status:  200, sources: "compute 0, local 0, external 500",
		}, {
			name: "lease over, blocks not reused", ids: ids,
			between: func(*testing.T, *Engine, map[string]any) { time.Sleep(31 * time.Second) },
			status:  200, sources: "compute 0, local 0, external 500",
		}, {
			name: "lease over, blocks reused", ids: ids,
			between: func(t *testing.T, a *Engine, _ map[string]any) { time.Sleep(31 * time.Second); reuse(t, a) },
			status:  200, wrong: true, sources: "compute 0, local 0, external 500",
		}, {
			name: "blocks reused within the lease", ids: ids,
			between: func(t *testing.T, a *Engine, _ map[string]any) { time.Sleep(20 * time.Second); reuse(t, a) },
			status:  200, sources: "compute 0, local 0, external 500",
		}, {
			name: "40 tokens shorter", ids: ids[:n-40],
			status: 200, wrong: true, sources: "compute 0, local 0, external 460",
		}, {
			name: "the sampled token within a block", ids: append(slices.Clip(ids), 7),
			status: 200, sources: "compute 0, local 0, external 501",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, stop := startPair(t)
				defer stop()
				params := handoff(t, a, ids)
				if tc.between != nil {
					tc.between(t, a, params)
				}
				begun := time.Now()
				code, r := send(t, b, tc.ids, 20, params)
				if took := time.Since(begun); took < tc.took || took > tc.took+2*time.Second {
					t.Errorf("took %v, want at least %v", took, tc.took)
				}
				want := oracle(t, tc.ids, 20)
				if code != tc.status || slices.Equal(r.ids(), want) == tc.wrong {
					t.Errorf("status %d, ids %v; those of an uninterrupted run are %v", code, r.ids(), want)
				}
				if got := sources(t, b); got != tc.sources {
					t.Errorf("%s, want %s", got, tc.sources)
				}
				if cached := r.Usage.Details.Cached; cached != (len(tc.ids)-1)/32*32 {
					t.Errorf("%d cached tokens: vLLM claims the full blocks, whatever happened", cached)
				}
			})
		})
	}
}

// reuse overwrites all free blocks of an engine.
func reuse(t *testing.T, e *Engine) {
	t.Helper()
	for seed := range 8 {
		if code, _ := send(t, e, promptOf(3000, 100+seed), 1, nil); code != http.StatusOK {
			t.Errorf("status %d", code)
		}
	}
}

// A request with one token more than A has KV for kills the engine core at a block's edge.
func TestHandoffDiesAtBlockEdge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sideChannels{}
		a, stopA := net.start(t, 5601, Config{}, KVTransfer{})
		defer stopA()
		l := testkit.NewPipeListener(netip.MustParseAddrPort("127.0.0.1:5602"))
		b := newEngine(t, Config{BlockTokens: 32, KVTransfer: &KVTransfer{Listener: l}})
		ended := make(chan error, 1)
		go func() { ended <- b.Run(t.Context()) }()
		ids := promptOf(128, 1)
		params := handoff(t, a, ids)
		running := make(chan int, 1)
		go func() { code, _ := send(t, b, promptOf(10, 2), 1000, nil); running <- code }()
		time.Sleep(time.Second)
		if code, _ := send(t, b, append(ids, 7), 10, params); code != http.StatusInternalServerError {
			t.Errorf("status %d", code)
		}
		if code := <-running; code != http.StatusInternalServerError {
			t.Errorf("another request ends with %d", code)
		}
		testkit.WantError(t, <-ended, "assert num_decode_blocks <= len(prefill_group)")
		if code, _ := send(t, b, ids, 1, nil); code != http.StatusInternalServerError {
			t.Errorf("a new request gets %d", code)
		}
		if w := serveRequest(b, httptest.NewRequest("GET", "/health", nil)); w.Code == http.StatusOK {
			t.Error("a dead engine is healthy")
		}
	})
}

// B keeps what it knows of an engine for ever: it recomputes all that a restarted one with the same id
// offers, while the other direction works. With a new id, pulls work.
func TestHandoffFromRestartedEngine(t *testing.T) {
	for _, id := range []string{"A", ""} {
		t.Run("id="+id, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := sideChannels{}
				b, stopB := net.start(t, 5602, Config{}, KVTransfer{EngineID: "B"})
				defer stopB()
				for life := range 3 {
					a, stopA := net.start(t, 5601, Config{}, KVTransfer{EngineID: id})
					ids := promptOf(100, 1)
					ids[0] = model.Token(life + 1)
					params := handoff(t, a, ids)
					_, r := send(t, b, ids, 20, params)
					if want := oracle(t, ids, 20); !slices.Equal(r.ids(), want) {
						t.Errorf("life %d: %v, want %v", life, r.ids(), want)
					}
					failed := float64(life)
					if id == "" {
						failed = 0
					}
					if got := metric(t, b, "vllm:nixl_num_failed_transfers_total"); got != failed {
						t.Errorf("life %d: %v transfers have failed, want %v", life, got, failed)
					}
					if _, r := send(t, a, promptOf(70, life), 5, handoff(t, b, promptOf(70, life))); len(r.ids()) != 5 {
						t.Errorf("life %d: the other direction: %v", life, r)
					}
					if got := metric(t, a, "vllm:nixl_num_failed_transfers_total"); got != 0 {
						t.Errorf("life %d: %v transfers of the other direction have failed", life, got)
					}
					stopA()
				}
			})
		})
	}
}

// A pull from a frozen engine never ends by itself. B stays healthy, and gets its blocks back when the
// client closes the connection.
func TestHandoffFromFrozenEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, stop := startPair(t)
		defer stop()
		ids := promptOf(100, 1)
		params := handoff(t, a, ids)
		a.Hang()
		ctx, leave := context.WithCancel(t.Context())
		body := testkit.Must(json.Marshal(map[string]any{"prompt": ids, "max_tokens": 5, "kv_transfer_params": params}))
		ended := make(chan struct{})
		go func() {
			serveRequest(b, post("/v1/completions", string(body)).WithContext(ctx))
			close(ended)
		}()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		select {
		case <-ended:
			t.Fatal("the pull has ended")
		default:
		}
		if got := metric(t, b, `vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"}`); got != 1 {
			t.Errorf("%v requests are deferred", got)
		}
		if code, _ := send(t, b, promptOf(50, 2), 5, nil); code != http.StatusOK {
			t.Errorf("meanwhile B answers %d", code)
		}
		leave()
		<-ended
		synctest.Wait()
		if got := metric(t, b, "vllm:kv_cache_usage_perc"); got != 0 {
			t.Errorf("%v of B's blocks are in use", got)
		}
		a.Resume()
	})
}
