package stock

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/handofftest"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

const (
	// model is the name under which the engines serve the tiny model.
	model = "tiny"
	// context is the longest sequence of an engine, kvTokens what its KV cache holds, and batch how many sequences it
	// runs at once.
	context, kvTokens, batch = 4096, 32768, 8
	// block is the size of a KV block in tokens, the smallest on CPUs.
	block = 32
)

// options are what tests vary about engines.
type options struct {
	// connector loads NIXL's KV connector, so that requests can be handed over with their KV. An idle engine then
	// uses a whole core.
	connector bool
	// sockets, unless it is nil, has for each engine the directory of the socket of Cascade's connector, which is
	// loaded instead.
	sockets []string
	lease   int      // seconds for which an engine keeps KV that it hands over; 0: vLLM's default
	model   string   // its folder; "": the installation's
	args    []string // additional arguments of "vllm serve"
	env     []string // in the environment besides engineEnv
}

// nixl configures the connector. engine_id is unset, so that it differs between two lives of an engine: a peer keeps
// what it knows of an id, and every pull from a restarted engine of the same id would fail.
const nixl = `{"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu", "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {%s}}`

// engineEnv is what an engine needs in its environment on CPUs, and without a network.
var engineEnv = []string{
	"VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1",
	"VLLM_ENABLE_V1_MULTIPROCESSING=0", // otherwise the executor becomes the default
	"VLLM_HOST_IP=127.0.0.1", "UCX_TLS=tcp,self", "UCX_NET_DEVICES=lo",
	"VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1",
}

// engine is one instance of vLLM or SGLang.
type engine struct {
	*harness.Daemon
	URL string

	t    testing.TB
	http *http.Client
}

// newEngines starts engines and returns once all of them serve. They end with the test.
func newEngines(t testing.TB, n int, o options) []*engine {
	t.Helper()
	dir := installed(t)
	var out []*engine
	addresses := testkit.Addresses(t, 2*n)
	for i := range n {
		each := o
		if o.sockets != nil {
			each = o.withSocket(o.sockets[i])
		}
		out = append(out, startEngine(t, dir, addresses[2*i], addresses[2*i+1], each))
	}
	awaitEngines(t, out)
	return out
}

// awaitEngines waits until engines that start serve.
func awaitEngines(t testing.TB, engines []*engine) {
	t.Helper()
	began := time.Now()
	for _, e := range engines {
		e.awaitHealthy()
	}
	t.Logf("%d engines started within %.0f s", len(engines), time.Since(began).Seconds())
}

// startEngine starts an engine at an address; with a connector, its side channel is at another one.
func startEngine(t testing.TB, dir, address, side string, o options) *engine {
	t.Helper()
	host, port, _ := strings.Cut(address, ":")
	_, sidePort, _ := strings.Cut(side, ":")
	args := []string{"serve", cmp.Or(o.model, filepath.Join(dir, model)), "--served-model-name", model, "--host", host, "--port", port,
		"--dtype", "float32", "--max-model-len", fmt.Sprint(context), "--block-size", fmt.Sprint(block),
		"--num-gpu-blocks-override", fmt.Sprint(kvTokens / block), "--max-num-seqs", fmt.Sprint(batch), "--max-num-batched-tokens", fmt.Sprint(context),
		"--enforce-eager",                       // compiles nothing
		"--distributed-executor-backend", "uni", // the default loses wake-ups on CPUs, and stalls for seconds
		"--enable-prefix-caching", "--enable-prompt-tokens-details", "--disable-access-log-for-endpoints", "/health,/metrics"}
	if o.connector {
		extra := ""
		if o.lease > 0 {
			extra = fmt.Sprintf(`"kv_lease_duration": %d`, o.lease)
		}
		args = append(args, "--kv-transfer-config", fmt.Sprintf(nixl, extra))
	}
	return start(t, address, harness.Command{Binary: filepath.Join(dir, "bin/vllm"), Args: append(args, o.args...), Env: append([]string{
		"VLLM_NIXL_SIDE_CHANNEL_HOST=" + host, "VLLM_NIXL_SIDE_CHANNEL_PORT=" + sidePort,
	}, append(o.env, engineEnv...)...)})
}

// start starts an engine that will serve at an address.
func start(t testing.TB, address string, c harness.Command) *engine {
	t.Helper()
	c.Group, c.MayFail = true, true
	e := &engine{URL: "http://" + address, t: t, http: harness.NewHTTP()}
	e.Daemon = c.Start(t)
	t.Cleanup(e.http.CloseIdleConnections)
	return e
}

// restart starts the engine anew, after its end, and waits until it serves.
func (e *engine) restart() {
	e.t.Helper()
	e.Daemon = e.Command.Start(e.t)
	e.awaitHealthy()
}

// awaitHealthy waits until the engine serves. On a busy host that takes minutes: it fails once the engine has ended, or
// writes nothing for as long as a test waits for an event.
func (e *engine) awaitHealthy() {
	e.t.Helper()
	for healthy, logged := false, 0; !healthy; {
		testkit.WaitFor(e.t, e.URL+" is healthy", func() bool {
			if !e.Running() {
				e.t.Fatalf("the engine has ended while it started:\n%s", e.Log)
			}
			if resp, err := e.http.Get(e.URL + "/health"); err == nil {
				resp.Body.Close()
				healthy = resp.StatusCode == http.StatusOK
			}
			before := logged
			logged = len(e.Log.String())
			return healthy || logged > before
		})
	}
}

// completion is a request of text that follows a prompt, without randomness and of an exact length.
type completion struct {
	prompt string
	output int
	chat   bool // the prompt is a user's message
}

// path returns the endpoint that is asked.
func (c completion) path() string {
	if c.chat {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

// textOf returns the text of an answer that is not streamed.
func (c completion) textOf(answer []byte) string {
	return cmp.Or(gjson.GetBytes(answer, "choices.0.text").Str, gjson.GetBytes(answer, "choices.0.message.content").Str)
}

// body returns the request's body. Options are pairs of JSON field and value, such as `"stream"`, true.
func (c completion) body(more map[string]any) []byte {
	fields := map[string]any{"model": model, "max_tokens": c.output, "temperature": 0, "ignore_eos": true}
	if c.chat {
		fields["messages"] = []map[string]string{{"role": "user", "content": c.prompt}}
	} else {
		fields["prompt"] = c.prompt
	}
	for name, value := range more {
		fields[name] = value
	}
	return testkit.Must(json.Marshal(fields))
}

// text returns the text that the engine itself answers.
func (e *engine) text(t testing.TB, c completion) string {
	t.Helper()
	answer := post(t, e.http, e.URL+c.path(), c.body(nil))
	text := c.textOf(answer)
	if text == "" {
		t.Fatalf("%s: %s", e.URL, answer)
	}
	return text
}

// counter returns the sum of the engine's series of a metric that contain a text.
func (e *engine) counter(t testing.TB, metric, label string) float64 {
	t.Helper()
	return handofftest.Counter(t, e.http, e.URL, metric, label)
}

// post sends a JSON body and returns that of the answer, which must have status 200.
func post(t testing.TB, client *http.Client, url string, body []byte) []byte {
	t.Helper()
	answer, err := tryPost(client, url, body)
	testkit.NoError(t, err)
	return answer
}

// tryPost is post for goroutines other than the test's.
func tryPost(client *http.Client, url string, body []byte) ([]byte, error) {
	resp, err := client.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %s, %v", url, resp.Status, answer, err)
	}
	return answer, nil
}

// prompt returns a text of made-up words that is different for each seed from its first word on, about size bytes.
func prompt(seed, size int) string {
	const consonants, vowels = "bdfgklmnprstvz", "aeiou"
	var b strings.Builder
	for state := uint32(seed)*2654435761 + 1; b.Len() < size; {
		state = state*1664525 + 1013904223
		b.WriteByte(consonants[state>>8%uint32(len(consonants))%uint32(len(consonants))])
		b.WriteByte(vowels[state>>16%uint32(len(vowels))%uint32(len(vowels))])
		if state>>28 < 5 {
			b.WriteByte(' ')
		}
	}
	return b.String()
}
