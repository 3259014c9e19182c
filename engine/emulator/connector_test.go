package emulator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// exchange carries KV between a test's engines, in its memory.
type exchange struct {
	mu     sync.Mutex
	offers map[string][]byte // by handle and digest
	slot   int               // bytes of a block
	broken func(context.Context) error
}

func newExchange() *exchange {
	return &exchange{offers: make(map[string][]byte), slot: 32 * defaultSlotBytes}
}

// side is the connector of the engine of one replica.
type side struct {
	*exchange
	replica string
}

func (s side) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (s side) Replica() (string, bool)       { return s.replica, true }

func (s side) Offer(handle, digest string, blocks []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offers[s.replica+handle+digest] = blocks
	return nil
}

func (s side) Fetch(ctx context.Context, w KVWant) ([]byte, error) {
	if s.broken != nil {
		if err := s.broken(ctx); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.offers[w.Holder+w.Handle+w.Digest]
	if len(all) != (w.First+w.Blocks)*s.slot {
		return nil, fmt.Errorf("%d bytes for the blocks %d to %d", len(all), w.First, w.First+w.Blocks)
	}
	return all[w.First*s.slot:], nil
}

// startPair runs two engines that hand KV over to each other.
func startPair(t *testing.T, edit func(i int, c *Config)) (a, b *Engine, x *exchange) {
	t.Helper()
	x = newExchange()
	var engines [2]*Engine
	for i := range engines {
		c := Config{BlockTokens: 32, KVConnector: side{x, fmt.Sprint("r", i)}}
		if edit != nil {
			edit(i, &c)
		}
		e, stop := start(t, c)
		t.Cleanup(stop)
		engines[i] = e
	}
	return engines[0], engines[1], x
}

// reply is what the tests read of an answer.
type reply struct {
	completion
	Params map[string]any `json:"kv_transfer_params"`
}

func (r reply) ids() []model.Token { return r.Choices[0].TokenIDs }

// send sends a completion of ids with kv_transfer_params, and returns the status and the answer. It may be called from any
// goroutine.
func send(t *testing.T, e *Engine, ids []model.Token, tokens int, params map[string]any) (int, reply) {
	t.Helper()
	body := testkit.Must(json.Marshal(map[string]any{
		"prompt": ids, "max_tokens": tokens, "ignore_eos": true, "return_token_ids": true, "kv_transfer_params": params,
	}))
	w := serveRequest(e, post("/v1/completions", string(body)))
	var r reply
	if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil || w.Code != http.StatusOK || len(r.Choices) == 0 {
		t.Errorf("status %d, %v: %s", w.Code, err, w.Body)
		_ = json.Unmarshal([]byte(`{"choices":[{}]}`), &r)
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
	synctest.Wait() // the blocks are copied soon after the answer
	return r.Params
}

// promptOf returns n ids, others for every seed.
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
				a, b, _ := startPair(t, nil)
				ids := promptOf(n, n)
				params := handoff(t, a, ids)
				for field, want := range map[string]any{
					"do_remote_decode": false, "kv_connector": "CascadeConnector", "cascade_holder": "r0", "remote_num_tokens": float64(n),
				} {
					if got, ok := params[field]; !ok || got != want {
						t.Errorf("%s is %v, want %v", field, got, want)
					}
				}
				if used := metric(t, a, "vllm:kv_cache_usage_perc"); used != 0 {
					t.Errorf("%v of A's blocks are kept", used)
				}
				code, r := send(t, b, ids, 60, params)
				if want := oracle(t, ids, 60); code != http.StatusOK || !slices.Equal(r.ids(), want) {
					t.Errorf("status %d, %v, want %v", code, r.ids(), want)
				}
				if got, want := sources(t, b), fmt.Sprintf("compute 0, local 0, external %d", n); got != want {
					t.Errorf("%s, want %s", got, want)
				}
			})
		})
	}
}

// Pre-copy rounds leave the difference to the last pull, as measured on vLLM.
func TestHandoffPullsWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := startPair(t, nil)
		ids := promptOf(1100, 1)
		send(t, b, ids[:1060], 1, handoff(t, a, ids[:1060]))
		_, r := send(t, b, ids, 60, handoff(t, a, ids))
		if want := oracle(t, ids, 60); !slices.Equal(r.ids(), want) {
			t.Errorf("%v, want %v", r.ids(), want)
		}
		if got, want := sources(t, b), "compute 0, local 1056, external 1104"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

// A chat continues from ids in kv_transfer_params.
func TestHandoffOfChat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := startPair(t, nil)
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

// Without a connector the params are ignored and answered with null.
func TestHandoffWithoutConnector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, stop := start(t, Config{})
		defer stop()
		code, r := send(t, e, promptOf(50, 1), 1, map[string]any{"do_remote_decode": true})
		if code != http.StatusOK || r.Params != nil {
			t.Errorf("status %d, params %v", code, r.Params)
		}
		if strings.Contains(metricsOf(e), "external_prefix_cache") {
			t.Error("an engine without a connector has its metrics")
		}
	})
}

// What does not arrive is computed, and vLLM claims the full blocks as cached, whatever happened.
func TestHandoffFailures(t *testing.T) {
	const n = 500
	ids := promptOf(n, 1)
	for name, tc := range map[string]struct {
		ids    []model.Token
		change func(*exchange, map[string]any)
	}{
		"the fetch fails": {ids, func(x *exchange, _ map[string]any) {
			x.broken = func(context.Context) error { return errors.New("broken") }
		}},
		"an unknown handle":      {ids, func(_ *exchange, p map[string]any) { p["cascade_handle"] = "x" }},
		"KV of another length":   {ids, func(_ *exchange, p map[string]any) { p["remote_num_tokens"] = n - 1 }},
		"40 tokens shorter":      {ids[:n-40], nil},
		"the sampled token, too": {append(slices.Clip(ids), 7), nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, x := startPair(t, nil)
				params := handoff(t, a, ids)
				if tc.change != nil {
					tc.change(x, params)
				}
				_, r := send(t, b, tc.ids, 20, params)
				if want := oracle(t, tc.ids, 20); !slices.Equal(r.ids(), want) {
					t.Errorf("ids %v; those of an uninterrupted run are %v", r.ids(), want)
				}
				if got, want := sources(t, b), fmt.Sprintf("compute %d, local 0, external 0", len(tc.ids)); got != want {
					t.Errorf("%s, want %s", got, want)
				}
				if cached := r.Usage.Details.Cached; cached != (len(tc.ids)-1)/32*32 {
					t.Errorf("%d cached tokens", cached)
				}
			})
		})
	}
}

// While a fetch does not end, the engine stays healthy, and gets its blocks back when the client closes the connection.
func TestHandoffFetchHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, x := startPair(t, nil)
		x.broken = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		ids := promptOf(100, 1)
		params := handoff(t, a, ids)
		ctx, leave := context.WithCancel(t.Context())
		body := testkit.Must(json.Marshal(map[string]any{"prompt": ids, "max_tokens": 5, "kv_transfer_params": params}))
		ended := make(chan struct{})
		go func() {
			serveRequest(b, post("/v1/completions", string(body)).WithContext(ctx))
			close(ended)
		}()
		time.Sleep(time.Second)
		if got := metric(t, b, `vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"}`); got != 1 {
			t.Errorf("%v requests are deferred", got)
		}
		send(t, b, promptOf(50, 2), 5, nil)
		leave()
		<-ended
		synctest.Wait()
		if got := metric(t, b, "vllm:kv_cache_usage_perc"); got != 0 {
			t.Errorf("%v of B's blocks are in use", got)
		}
	})
}

// deviceMemory stands for the memory of a GPU.
type deviceMemory struct {
	mu    sync.Mutex
	bytes []byte
}

func (d *deviceMemory) ReadAt(b []byte, at int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return copy(b, d.bytes[at:]), nil
}

func (d *deviceMemory) WriteAt(b []byte, at int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return copy(d.bytes[at:], b), nil
}

func (d *deviceMemory) Share() ([]byte, *os.File, error) { return nil, nil, nil }
func (d *deviceMemory) Close() error                     { return nil }

// A handoff between engines on devices carries what the device has.
func TestHandoffOnDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var of [2]deviceMemory
		a, b, _ := startPair(t, func(i int, c *Config) {
			c.Device = func(n int64) (kv.Memory, error) { of[i].bytes = make([]byte, n); return &of[i], nil }
		})
		ids := promptOf(100, 1)
		_, r := send(t, b, ids, 20, handoff(t, a, ids))
		if got, want := r.ids(), oracle(t, ids, 20); !slices.Equal(got, want) {
			t.Errorf("ids %v; those of one engine are %v", got, want)
		}
		if got, want := sources(t, b), "compute 0, local 0, external 100"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}
