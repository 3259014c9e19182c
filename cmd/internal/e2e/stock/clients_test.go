package stock

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// nodePackage is the client of openai-node that the tests install.
const nodePackage = "openai@7.57.0"

// run runs a program to its end, which must be success, and returns its output.
func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1")
	out, err := cmd.Output()
	if err != nil {
		var detail []byte
		if e, ok := err.(*exec.ExitError); ok {
			detail = e.Stderr
		}
		t.Fatalf("%s: %v\n%s%s", filepath.Base(program), err, out, detail)
	}
	return string(out)
}

// testPythonClient checks that openai-python reads the same answers from Cascade as from the engine.
func testPythonClient(t *testing.T, f *fleet) {
	requireSameAnswers(t, f, func(base string) string {
		return run(t, filepath.Join(installed(t), "bin/python"), "testdata/client.py", base)
	})
}

// testNodeClient is testPythonClient for openai-node.
func testNodeClient(t *testing.T, f *fleet) {
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			testkit.Skip(t, testkit.Unavailable{What: tool + " is not installed", Remedy: "install Node.js"})
		}
	}
	dir := filepath.Join(installed(t), "node")
	if _, err := os.Stat(filepath.Join(dir, "node_modules/openai/package.json")); err != nil {
		testkit.NoError(t, os.MkdirAll(dir, 0o755))
		run(t, "npm", "install", "--silent", "--prefix", dir, nodePackage)
	}
	// Modules are found from the directory of the script.
	script := filepath.Join(dir, "client.mjs")
	testkit.NoError(t, os.WriteFile(script, testkit.Must(os.ReadFile("testdata/client.mjs")), 0o644))
	requireSameAnswers(t, f, func(base string) string { return run(t, "node", script, base) })
	f.awaitIdle()
}

// requireSameAnswers checks that a client prints the same for an engine and for Cascade.
func requireSameAnswers(t *testing.T, f *fleet, client func(base string) string) {
	t.Helper()
	direct, through := client(f.engines[0].URL), client(f.DataPlane)
	gjson.Parse(direct).ForEach(func(name, want gjson.Result) bool {
		if got := gjson.Get(through, name.Str); got.Raw != want.Raw {
			t.Errorf("%s:\n%s\nthe engine itself:\n%s", name.Str, got.Raw, want.Raw)
		}
		return true
	})
}

// awaitIdle waits until no engine runs a request.
func (f *fleet) awaitIdle() {
	f.T.Helper()
	for _, e := range f.engines {
		f.WaitFor(e.URL+" is idle", func() bool {
			return e.counter(f.T, "vllm:num_requests_running", "")+e.counter(f.T, "vllm:num_requests_waiting", "") == 0
		})
	}
}

// testBench runs vLLM's own load generator against Cascade: every request is answered with every token it asked for.
func testBench(t *testing.T, f *fleet) {
	const requests, output = 60, 40
	dir := installed(t)
	for _, c := range []struct{ backend, endpoint string }{{"openai", "/v1/completions"}, {"openai-chat", "/v1/chat/completions"}} {
		results := t.TempDir()
		run(t, filepath.Join(dir, "bin/vllm"), "bench", "serve", "--backend", c.backend, "--base-url", f.DataPlane, "--endpoint", c.endpoint,
			"--model", model, "--tokenizer", filepath.Join(dir, model), "--dataset-name", "random", "--random-input-len", "200",
			"--random-output-len", fmt.Sprint(output), "--num-prompts", fmt.Sprint(requests), "--max-concurrency", "8", "--ignore-eos",
			"--save-result", "--result-dir", results, "--result-filename", "bench.json")
		var got struct {
			Completed   int     `json:"completed"`
			Failed      int     `json:"failed"`
			TotalOutput int     `json:"total_output_tokens"`
			TPOT        float64 `json:"median_tpot_ms"`
			TTFT        float64 `json:"median_ttft_ms"`
		}
		testkit.NoError(t, json.Unmarshal(testkit.Must(os.ReadFile(filepath.Join(results, "bench.json"))), &got))
		t.Logf("%s: %+v", c.endpoint, got)
		if got.Completed != requests || got.Failed != 0 || got.TotalOutput != requests*output {
			t.Errorf("%s: want %d requests with %d tokens each", c.endpoint, requests, output)
		}
	}
}
