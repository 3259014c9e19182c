package emulator

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/internal/testkit"
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

// send sends a completion of ids with kv_transfer_params, and returns the status and the answer. It may be called from any
// goroutine.
func send(t *testing.T, e *Engine, ids []model.Token, tokens int, params map[string]any) (int, reply) {
	t.Helper()
	body := testkit.Must(json.Marshal(map[string]any{
		"prompt": ids, "max_tokens": tokens, "ignore_eos": true, "return_token_ids": true, "kv_transfer_params": params,
	}))
	w := serveRequest(e, post("/v1/completions", string(body)))
	var r reply
	if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil {
		t.Errorf("status %d, %v: %s", w.Code, err, w.Body)
	}
	if w.Code != http.StatusOK || len(r.Choices) == 0 {
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

// A handoff between engines on devices reads what the device has: also what another process has
// written there, as CUDA's readers do.
func TestHandoffOnDevice(t *testing.T) {
	for name, overwritten := range map[string]bool{"kept": false, "overwritten": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net, of := sideChannels{}, [2]deviceMemory{}
				device := func(i int) func(int64) (kv.Memory, error) {
					return func(n int64) (kv.Memory, error) { of[i].bytes = make([]byte, n); return &of[i], nil }
				}
				a, stopA := net.start(t, 5601, Config{Device: device(0)}, KVTransfer{EngineID: "A"})
				defer stopA()
				b, stopB := net.start(t, 5602, Config{Device: device(1)}, KVTransfer{EngineID: "B"})
				defer stopB()
				ids := promptOf(100, 1)
				params := handoff(t, a, ids)
				if overwritten {
					of[0].WriteAt(make([]byte, len(of[0].bytes)), 0)
				}
				_, r := send(t, b, ids, 20, params)
				if got, want := r.ids(), oracle(t, ids, 20); slices.Equal(got, want) == overwritten {
					t.Errorf("ids %v; those of one engine are %v", got, want)
				}
				if got, want := sources(t, b), "compute 0, local 0, external 100"; got != want {
					t.Errorf("%s, want %s", got, want)
				}
			})
		})
	}
}

// The address of the side channel is given to other engines: one that they cannot dial is refused.
func TestSideChannelAddress(t *testing.T) {
	for address, want := range map[net.Addr]string{
		&net.UnixAddr{Name: "/tmp/x", Net: "unix"}:  `"/tmp/x" is not that of a TCP port`,
		&net.UnixAddr{Name: "a:b", Net: "unix"}:     "invalid syntax",
		&net.UnixAddr{Name: ":5600", Net: "unix"}:   "no host or no port",
		&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}:    "no host or no port",
		&net.UnixAddr{Name: "h:65536", Net: "unix"}: "no host or no port",
	} {
		c := Config{Model: "m", Profile: plainProfile(), KVTransfer: &KVTransfer{Listener: addressed{address}}}
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "KVTransfer") {
			t.Errorf("%v: %v", address, err)
		}
	}
}

// addressed is a listener with an address.
type addressed struct{ address net.Addr }

func (l addressed) Addr() net.Addr            { return l.address }
func (l addressed) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (l addressed) Close() error              { return nil }
