package emulator

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// sideChannels are the side channels of a test's engines, by address.
type sideChannels map[string]*testkit.PipeListener

// start runs an engine with a KV connector on a port of its own.
func (n sideChannels) start(t *testing.T, port uint16, c Config, k KVTransfer) (*Engine, func()) {
	t.Helper()
	l := testkit.NewPipeListener(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port))
	n[l.Addr().String()] = l
	k.Listener, k.Dial = l, func(ctx context.Context, address string) (net.Conn, error) {
		if l := n[address]; l != nil {
			return l.Dial(ctx)
		}
		return nil, fmt.Errorf("nothing listens at %s", address)
	}
	c.KVTransfer = &k
	if c.BlockTokens == 0 {
		c.BlockTokens = 32
	}
	return start(t, c)
}

// startPair runs two engines with KV connectors that reach each other.
func startPair(t *testing.T) (a, b *Engine, stop func()) {
	t.Helper()
	net := sideChannels{}
	a, stopA := net.start(t, 5601, Config{}, KVTransfer{EngineID: "A"})
	b, stopB := net.start(t, 5602, Config{}, KVTransfer{EngineID: "B"})
	return a, b, func() { stopB(); stopA() }
}

// reply is what the tests read of an answer.
type reply struct {
	completion
	Params map[string]any `json:"kv_transfer_params"`
}

func (r reply) ids() []model.Token { return r.Choices[0].TokenIDs }

// send sends a completion of ids with kv_transfer_params, and returns the status and the answer.
func send(t *testing.T, e *Engine, ids []model.Token, tokens int, params map[string]any) (int, reply) {
	t.Helper()
	body := testkit.Must(json.Marshal(map[string]any{
		"prompt": ids, "max_tokens": tokens, "ignore_eos": true, "return_token_ids": true, "kv_transfer_params": params,
	}))
	w := serveRequest(e, post("/v1/completions", string(body)))
	var r reply
	testkit.NoError(t, json.Unmarshal(w.Body.Bytes(), &r))
	if w.Code != http.StatusOK {
		r.Choices = append(r.Choices, struct {
			Text         string
			FinishReason string        `json:"finish_reason"`
			StopReason   any           `json:"stop_reason"`
			TokenIDs     []model.Token `json:"token_ids"`
		}{})
	}
	return w.Code, r
}

// handoff sends the handoff leg of ids and returns the params.
func handoff(t *testing.T, e *Engine, ids []model.Token) map[string]any {
	t.Helper()
	code, r := send(t, e, ids, 1, map[string]any{"do_remote_decode": true, "do_remote_prefill": false})
	if code != http.StatusOK || r.Params["do_remote_prefill"] != true {
		t.Fatalf("handoff: status %d, params %v", code, r.Params)
	}
	return r.Params
}

// prompt returns n ids, others for every seed.
func promptOf(n, seed int) []model.Token {
	ids := make([]model.Token, n)
	for i := range ids {
		ids[i] = model.Token(1000 + (i*7919+seed*104729)%20000)
	}
	return ids
}

// oracle returns what an engine that never moved anything generates.
func oracle(t *testing.T, ids []model.Token, tokens int) []model.Token {
	t.Helper()
	e, stop := start(t, Config{})
	defer stop()
	_, r := send(t, e, ids, tokens, nil)
	return r.ids()
}

func sources(t *testing.T, e *Engine) string {
	t.Helper()
	return fmt.Sprintf("compute %v, local %v, external %v",
		metric(t, e, `vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"}`),
		metric(t, e, `vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"}`),
		metric(t, e, `vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"}`))
}

// A handoff moves a text at every position around a block's edge, and nothing is computed again.
func TestHandoff(t *testing.T) {
	for _, n := range []int{1, 2, 100, 127, 128, 129, 160, 1060} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, stop := startPair(t)
				defer stop()
				ids := promptOf(n, n)
				params := handoff(t, a, ids)
				for field, want := range map[string]any{
					"do_remote_decode": false, "remote_engine_id": "A", "remote_host": "127.0.0.1", "remote_port": 5601.0, "tp_size": 1.0,
					"remote_num_tokens": float64(n), "remote_blocks_expiry_time": nil, "transfer_mode": "pull", "remote_prefill_cached_tokens": 0.0,
				} {
					if got, ok := params[field]; !ok || got != want {
						t.Errorf("%s is %v, want %v", field, got, want)
					}
				}
				if id := params["remote_request_id"].(string); !strings.HasPrefix(id, "cmpl-r-0-") {
					t.Errorf("remote_request_id is %q", id)
				}
				blocks := params["remote_block_ids"].([]any)[0].([]any)
				if len(blocks) != (n+31)/32 {
					t.Errorf("%d blocks for %d tokens", len(blocks), n)
				}
				if used := metric(t, a, "vllm:kv_cache_usage_perc"); used == 0 {
					t.Error("the blocks are not kept")
				}
				code, r := send(t, b, ids, 60, params)
				if want := oracle(t, ids, 60); code != http.StatusOK || !slices.Equal(r.ids(), want) {
					t.Errorf("status %d, %v, want %v", code, r.ids(), want)
				}
				if got, want := sources(t, b), fmt.Sprintf("compute 0, local 0, external %d", n); got != want {
					t.Errorf("%s, want %s", got, want)
				}
				if used := metric(t, a, "vllm:kv_cache_usage_perc"); used != 0 {
					t.Errorf("%v of A's blocks are kept after the pull", used)
				}
				if got, want := metric(t, b, "vllm:nixl_bytes_transferred_sum"), float64(len(blocks)*32*64); got != want {
					t.Errorf("%v bytes, want %v", got, want)
				}
			})
		})
	}
}

// Pre-copy rounds leave the difference to the last pull, as measured on vLLM.
func TestHandoffPullsWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, stop := startPair(t)
		defer stop()
		ids := promptOf(1100, 1)
		send(t, b, ids[:1060], 1, handoff(t, a, ids[:1060]))
		_, r := send(t, b, ids, 60, handoff(t, a, ids))
		if want := oracle(t, ids, 60); !slices.Equal(r.ids(), want) {
			t.Errorf("%v, want %v", r.ids(), want)
		}
		if got, want := sources(t, b), "compute 0, local 1056, external 1104"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if got := metric(t, b, "vllm:nixl_num_descriptors_sum"); got != 34+2 {
			t.Errorf("%v blocks pulled, want 36", got)
		}
	})
}

// A chat continues from ids in kv_transfer_params.
func TestHandoffOfChat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, stop := startPair(t)
		defer stop()
		ids := promptOf(100, 1)
		params := handoff(t, a, ids)
		params["prompt_token_ids"] = ids
		body := testkit.Must(json.Marshal(map[string]any{
			"messages": []any{map[string]any{"role": "user", "content": "."}}, "max_tokens": 9, "ignore_eos": true, "return_token_ids": true, "kv_transfer_params": params,
		}))
		var r reply
		testkit.NoError(t, json.Unmarshal(serveRequest(b, post("/v1/chat/completions", string(body))).Body.Bytes(), &r))
		if want := oracle(t, ids, 9); !slices.Equal(r.ids(), want) {
			t.Errorf("%v, want %v", r.ids(), want)
		}
		if got, want := sources(t, b), "compute 0, local 0, external 100"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

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

// Without a connector the params are ignored and answered with null.
func TestHandoffWithoutConnector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, stop := start(t, Config{})
		defer stop()
		code, r := send(t, e, promptOf(50, 1), 1, map[string]any{"do_remote_decode": true})
		if code != http.StatusOK || r.Params != nil {
			t.Errorf("status %d, params %v", code, r.Params)
		}
		if strings.Contains(metricsOf(e), "nixl") {
			t.Error("an engine without a connector has its metrics")
		}
	})
}
