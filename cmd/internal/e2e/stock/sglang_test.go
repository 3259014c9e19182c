package stock

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/handofftest"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// TestSGLang covers stock SGLang: what clients read, moves of completions and chats at any token, drains, and the death of
// an engine.
func TestSGLang(t *testing.T) {
	engines := newSGLangs(t, 2)
	t.Run("answers", func(t *testing.T) { testAnswers(t, newFleet(t, engines, nil), sglangRules(), "ids too high") })
	t.Run("moves", func(t *testing.T) { testReprompts(t, [2]string{engines[0].URL, engines[1].URL}) })
	t.Run("drain", func(t *testing.T) { testDrain(t, newFleet(t, engines, nil)) })
	t.Run("death", func(t *testing.T) { testDeath(t, newFleet(t, engines, nil)) }) // the last one: it kills an engine
}

// TestSGLangKVEvents follows the events of a stock SGLang with a small prefix cache, through turns, evictions, salts,
// resets and a restart.
func TestSGLangKVEvents(t *testing.T) {
	const tokens = 2304
	addresses := testkit.Addresses(t, 2)
	each := handofftest.Engine{
		SGLang: true, Model: model, Endpoint: "tcp://" + addresses[0], ReplayEndpoint: "tcp://" + addresses[1], Topic: "kv",
		BlockTokens: block, Tokens: tokens,
	}
	events := fmt.Sprintf(`{"publisher": "zmq", "endpoint": %q, "replay_endpoint": %q, "topic": %q}`, each.Endpoint, each.ReplayEndpoint, each.Topic)
	e := newSGLangs(t, 1, "--page-size", fmt.Sprint(block), "--max-total-tokens", fmt.Sprint(tokens), "--enable-cache-report",
		"--kv-events-config", events)[0]
	each.URL = e.URL
	each.Restart = func() {
		e.Kill()
		e.restart()
	}
	handofftest.Play(t, each)
}

// newSGLangs starts engines of SGLang and returns once all of them serve. They end with the test.
func newSGLangs(t testing.TB, n int, args ...string) []*engine {
	t.Helper()
	packages, vllm := installedSGLang(t)
	var out []*engine
	for _, address := range testkit.Addresses(t, n) {
		host, port, _ := strings.Cut(address, ":")
		out = append(out, start(t, address, harness.Command{
			Binary: filepath.Join(vllm, "bin/python"),
			Args: append([]string{"-m", "sglang.launch_server", "--model-path", filepath.Join(vllm, model), "--served-model-name", model, "--host", host, "--port", port,
				"--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--disable-overlap-schedule", "--dtype", "float32",
				"--mem-fraction-static", "0.3", "--max-total-tokens", fmt.Sprint(kvTokens), "--context-length", fmt.Sprint(context),
				"--enable-metrics", "--sampling-defaults", "openai", "--sleep-on-idle"}, args...),
			Env: []string{"PYTHONPATH=" + packages, "OMP_NUM_THREADS=1", "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1"},
		}))
	}
	awaitEngines(t, out)
	return out
}

// sglangRules are all differences between the answers of SGLang and those through Cascade.
func sglangRules() []*rule {
	return compileRules([]*rule{
		{where: `: body(\.output)?\.id$`, why: "every answer has an id of its own", always: true},
		{where: `: body\.created$`, why: "the second in which the request was received"},
		{where: ` (n|temperature, seed|default temperature, seed|top_p|top_k|min_p): body\.choices\.`, why: "a seed counts with --enable-deterministic-inference only"},
		{where: `: body\.choices\.\d\.(prompt_)?token_ids added$`, why: "null where the front end had the ids", always: true},
		{where: `: body\.usage\.prompt_tokens_details(\.cached_tokens added)?$`, why: "the engine states it with --enable-cache-report only; /generate always does"},
		{where: `/completions (no JSON|a list|empty): `, why: "the front end refuses a body that is not an object before the engine reads it", always: true},
		{where: `^GET /v1/(chat/)?completions GET: `, why: "the front end refuses the method, in OpenAI's form", always: true},
		{where: `/chat/completions max_tokens too large: `, why: "the stream of /generate begins before it is refused"},
		{where: `/chat/completions return_token_ids: `, why: "streams of chats have ids: the engine refuses them", always: true},
		{where: ` no (messages|prompt): body\.message$`, why: "the engine shows the body, to which the front end adds fields"},
		{where: `logprobs: body\.choices\..*logprobs?(\.|$)`, why: "rounding: it depends on what else the engine runs"},
	})
}

// testReprompts moves streams of chats and completions twice, from any token on: what the client reads is the engine's own
// answer.
func testReprompts(t *testing.T, urls [2]string) {
	p := handofftest.New(t, model, urls, func(c *frontend.Config) { c.Cost.D0 = 1 })
	p.WholeChats = true
	rng := rand.New(rand.NewPCG(21, 22))
	var stalls []time.Duration
	for i := range 40 {
		first := 1 + rng.IntN(40)
		s := handofftest.Stream{At: i % 2, Output: 1000, Moves: []int{first, first + 1 + rng.IntN(60)}, After: 60}
		if i/2%2 == 0 {
			s.Text = prompt(i, []int{20, 300, 3000}[i%3])
		} else {
			for range []int{20, 200, 2000}[i%3] {
				s.Prompt = append(s.Prompt, 5+rng.Uint32N(1000))
			}
		}
		moves := p.Play(s)
		for _, m := range moves {
			if m.Err != nil {
				t.Errorf("stream %d: %v", i, m.Err)
			}
			stalls = append(stalls, m.Stall)
		}
		if len(moves) != len(s.Moves) {
			t.Errorf("stream %d: %d moves", i, len(moves))
		}
	}
	slices.Sort(stalls)
	t.Logf("%d moves, the client waited %v at the median, %v at most", len(stalls), stalls[len(stalls)/2], stalls[len(stalls)-1])
}
