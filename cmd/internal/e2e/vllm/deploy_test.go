package vllm

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/daemontest"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/loopback"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

var (
	shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")
	// localPort matches a port of this host: in an address, and as an argument or variable of vLLM.
	localPort = regexp.MustCompile(`(127\.0\.0\.1:|--port |CHANNEL_PORT=)([0-9]+)`)
)

// shims are programs before those of the same name in the path: what vLLM needs on CPUs, and a smaller grid of
// measurements.
var shims = map[string]string{
	"vllm": `case $1 in serve) exec %[1]s/bin/vllm "$@" --dtype float32 --max-model-len 4096 --block-size 32 --num-gpu-blocks-override 1024 --max-num-seqs 8 \
	--max-num-batched-tokens 4096 --enforce-eager --distributed-executor-backend uni;; esac
exec %[1]s/bin/vllm "$@"`,
	"cascade": `case "$1 $2" in "profile measure") exec %[2]s "$@" --lengths 100:1600 --max-batch 4 --seconds 3s;; esac
exec %[2]s "$@"`,
	"envoy": `exec %[3]s "$@"`,
}

// TestDeployment runs every command of deploy/vllm/README.md, in its order, with the tiny model and free ports.
func TestDeployment(t *testing.T) {
	dir := installed(t)
	envoy := envoytest.Binary(t)
	work, err := os.MkdirTemp("", "vllm")
	testkit.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(work) })
	const source = "../../../../deploy/vllm"
	ports := map[string]string{}
	adapt := func(name string) string {
		text := string(testkit.Must(os.ReadFile(filepath.Join(source, name))))
		text = localPort.ReplaceAllStringFunc(text, func(match string) string {
			m := localPort.FindStringSubmatch(match)
			if ports[m[2]] == "" {
				_, ports[m[2]], _ = strings.Cut(loopback.Addresses(t, 1)[0], ":")
			}
			return m[1] + ports[m[2]]
		})
		return strings.NewReplacer("meta-llama/Llama-3.1-8B-Instruct", model, "131072 #", fmt.Sprint(context, " #"), "--context 131072", fmt.Sprint("--context ", context),
			`"kv_role": "kv_both",`, `"kv_role": "kv_both", "kv_buffer_device": "cpu",`).Replace(text)
	}
	for _, name := range []string{"fleet.yaml", "kv-transfer.json"} {
		testkit.NoError(t, os.WriteFile(filepath.Join(work, name), []byte(adapt(name)), 0o600))
	}
	testkit.NoError(t, os.Symlink(filepath.Join(dir, model), filepath.Join(work, model)))
	for name, script := range shims {
		testkit.NoError(t, os.MkdirAll(filepath.Join(work, "bin"), 0o700))
		script = "#!/bin/sh\n" + strings.NewReplacer("%[1]s", dir, "%[2]s", cascade, "%[3]s", envoy).Replace(script) + "\n"
		testkit.NoError(t, os.WriteFile(filepath.Join(work, "bin", name), []byte(script), 0o700))
	}
	script := "cd " + work + "\nPATH=" + work + "/bin:$PATH\nset -ex\n"
	blocks := shellBlock.FindAllStringSubmatch(adapt("README.md"), -1)
	for i, b := range blocks {
		script += fmt.Sprintf("%s\necho block %d has run\n", b[1], i)
	}
	if len(blocks) < 6 {
		t.Fatalf("the README has only %d blocks of commands", len(blocks))
	}
	path := filepath.Join(work, "readme.sh")
	testkit.NoError(t, os.WriteFile(path, []byte(script), 0o600))
	d := daemontest.Command{Binary: "bash", Args: []string{path}, Group: true, Env: engineEnv}.Start(t)
	for i := range blocks {
		d.WaitForLog(fmt.Sprintf("(?m)^block %d has run$", i))
	}
	if stream := string(testkit.Must(os.ReadFile(filepath.Join(work, "stream.txt")))); !strings.HasSuffix(strings.TrimSpace(stream), "[DONE]") {
		t.Errorf("the stream was cut: it ends with %q", stream[max(0, len(stream)-300):])
	}
	log := d.Log.String()
	if !regexp.MustCompile(`(handoff|reprompt) +│ done`).MatchString(log) {
		t.Error("no request migrated")
	}
}
