package stock

import (
	"bufio"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/handofftest"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestKVEvents follows the events of an engine with a small prefix cache, through turns, evictions, resets and a restart.
func TestKVEvents(t *testing.T) {
	const tokens = 2304
	addresses := testkit.Addresses(t, 2)
	each := handofftest.Engine{
		Model: model, Endpoint: "tcp://" + addresses[0], ReplayEndpoint: "tcp://" + addresses[1], Topic: "kv@gpu0", BlockTokens: block, Tokens: tokens,
	}
	e := newEngines(t, 1, options{
		env: []string{"VLLM_SERVER_DEV_MODE=1"}, // has /reset_prefix_cache
		args: []string{
			"--max-model-len", fmt.Sprint(tokens - 2*block), "--num-gpu-blocks-override", fmt.Sprint(tokens / block),
			"--kv-events-config", fmt.Sprintf(`{"enable_kv_cache_events": true, "endpoint": %q, "replay_endpoint": %q, "topic": %q}`, each.Endpoint, each.ReplayEndpoint, each.Topic),
		},
	})[0]
	each.URL = e.URL
	each.Restart = func() {
		e.Kill()
		e.restart()
	}
	handofftest.Play(t, each)
}

// TestEmulatedKVEvents checks that libzmq receives an emulated engine's KV events, live and replayed, and that vLLM's own
// types would encode them with the same bytes.
func TestEmulatedKVEvents(t *testing.T) {
	python := filepath.Join(installed(t), "bin/python")
	for _, how := range []string{"connect", "listen"} {
		t.Run(how, func(t *testing.T) {
			addresses := testkit.Addresses(t, 2)
			endpoint, replay := "tcp://"+addresses[0], "tcp://"+addresses[1]
			config := emulator.KVEvents{Enable: true, Endpoint: endpoint, ReplayEndpoint: replay, Topic: "kv@gpu0"}
			if how == "connect" {
				config.Endpoint = "tcp://*" + addresses[0][strings.LastIndex(addresses[0], ":"):]
			}
			e := testkit.Must(emulator.New(emulator.Config{Model: model, Profile: testkit.Must(cost.Builtin("h200-llama-3.1-8b")), Speed: 100, KVTokens: 2048, Context: 1024, Adapters: []string{"sql"}, KVEvents: &config}))
			t.Cleanup(testkit.Run(t, e.Run))
			server := httptest.NewServer(e.Handler())
			t.Cleanup(server.Close)

			script := exec.CommandContext(t.Context(), python, "testdata/kvevents.py", how, endpoint, replay)
			script.Env = append(os.Environ(), "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1")
			var failure strings.Builder
			script.Stderr = &failure
			out := testkit.Must(script.StdoutPipe())
			testkit.NoError(t, script.Start())
			lines := make(chan string)
			go func() {
				defer close(lines)
				for s := bufio.NewScanner(out); s.Scan(); {
					select {
					case lines <- s.Text():
					case <-t.Context().Done():
						return
					}
				}
			}()
			client := harness.NewHTTP()
			defer client.CloseIdleConnections()
			rng := rand.New(rand.NewPCG(1, 1))
			batches := 0
			for live := false; !live; {
				for _, more := range []map[string]any{nil, {"cache_salt": "tenant-a"}, {"model": "sql"}} {
					ids := make([]uint32, 100+rng.IntN(300))
					for i := range ids {
						ids[i] = rng.Uint32N(100_000)
					}
					fields := map[string]any{"prompt": ids}
					maps.Copy(fields, more)
					post(t, client, server.URL+"/v1/completions", completion{output: 30}.body(fields))
				}
				select {
				case line, ok := <-lines:
					if live = line == "live"; !live {
						t.Fatalf("%q, %v: %s", line, ok, &failure)
					}
				case <-time.After(100 * time.Millisecond): // the script imports vLLM
				}
			}
			stored, removed, adapters, salts := 0, 0, 0, 0
			for line := range lines {
				batches++
				gjson.Get(line, "1").ForEach(func(_, event gjson.Result) bool {
					switch event.Get("type").Str {
					case "BlockStored":
						stored += len(event.Get("block_hashes").Array())
						if event.Get("lora_name").Str == "sql" && event.Get("lora_id").Int() == 1 {
							adapters++
						}
						if event.Get("extra_keys.0.0").Str == "tenant-a" {
							salts++
						}
					case "BlockRemoved":
						removed++
					}
					return true
				})
			}
			if err := script.Wait(); err != nil || batches < 3 || min(removed, adapters, salts) == 0 || stored-removed > 2048/16 {
				t.Errorf("%d batches stored %d blocks and removed %d, with %d adapters and %d salts: %v\n%s", batches, stored, removed, adapters, salts, err, &failure)
			}
		})
	}
}
