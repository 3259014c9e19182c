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

// realShims and emulatedShims are programs before those of the same name in the path: what vLLM needs on CPUs, or the
// emulator in its place, and a smaller grid of measurements.
var realShims = map[string]string{
	"vllm": `if [ "$1" = serve ]; then
	set -- "$@" --dtype float32 --max-model-len 4096 --block-size 32 --num-gpu-blocks-override 1024 --max-num-seqs 8 --max-num-batched-tokens 4096 \
		--enforce-eager --distributed-executor-backend uni
fi
exec "$INSTALLED/bin/vllm" "$@"`,
	"cascade": `if [ "$1 $2" = "profile measure" ]; then set -- "$@" --lengths 100:1600 --max-batch 4 --seconds 3s; fi
exec "$CASCADE" "$@"`,
}

var emulatedShims = map[string]string{
	"vllm": `kv="--kv-transfer $VLLM_NIXL_SIDE_CHANNEL_HOST:$VLLM_NIXL_SIDE_CHANNEL_PORT"
if [ -n "$CASCADE_KV_DIR" ]; then kv="--kv-socket $CASCADE_KV_DIR"; fi
model=$2 listen=$4:$6 events=
while [ $# -gt 0 ]; do
	if [ "$1" = --kv-events-config ]; then events=$2; fi
	shift
done
exec "$CASCADE" engine --model "$model" --context 4096 --speed 2 --listen "$listen" $kv --kv-events-config "$events"`,
	"cascade": `if [ "$1 $2" = "profile measure" ]; then set -- "$@" --lengths 100:1600 --max-batch 4 --output 16 --seconds 500ms; fi
exec "$CASCADE" "$@"`,
}

// TestDeployment runs every command of deploy/vllm/README.md on real engines.
func TestDeployment(t *testing.T) {
	dir := installed(t)
	runREADME(t, realShims, filepath.Join(dir, model), append([]string{"INSTALLED=" + dir}, engineEnv...))
}

// TestDeploymentEmulated runs every command of deploy/vllm/README.md on emulated engines, in every run of the tests.
func TestDeploymentEmulated(t *testing.T) {
	t.Parallel()
	runREADME(t, emulatedShims, t.TempDir(), nil)
}

// runREADME runs every command of deploy/vllm/README.md, in its order, with shims, a model in a directory, and free
// ports. A stream migrates and is complete.
func runREADME(t *testing.T, shims map[string]string, modelDir string, env []string) {
	t.Helper()
	envoy := envoytest.Binary(t)
	bash := testkit.Tool(t, "bash")
	testkit.Tool(t, "curl")
	work, err := os.MkdirTemp("", "vllm")
	testkit.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(work) })
	write := func(name, text string) {
		path := filepath.Join(work, name)
		testkit.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		testkit.NoError(t, os.WriteFile(path, []byte(text), 0o700))
	}
	adapt := adapter(t)
	for _, name := range []string{"fleet.yaml", "kv-transfer.json", "kv-transfer-cascade.json", "cascade_connector.py"} {
		write(name, adapt(name))
	}
	for name, script := range shims {
		write("bin/"+name, "#!/bin/sh\n"+script+"\n")
	}
	testkit.NoError(t, os.Symlink(envoy, filepath.Join(work, "bin/envoy")))
	testkit.NoError(t, os.Symlink(modelDir, filepath.Join(work, model)))
	script := "cd " + work + "\nPATH=" + work + "/bin:$PATH\nset -ex\ntrap 'kill -KILL 0' ERR\n" // or else children keep the log open
	blocks := shellBlock.FindAllStringSubmatch(adapt("README.md"), -1)
	for i, b := range blocks {
		script += fmt.Sprintf("%s\necho block %d has run\n", b[1], i)
	}
	if len(blocks) < 6 {
		t.Fatalf("the README has only %d blocks of commands", len(blocks))
	}
	write("readme.sh", script)
	d := daemontest.Command{Binary: bash, Args: []string{filepath.Join(work, "readme.sh")}, Group: true, Env: append(env, "CASCADE="+cascade)}.Start(t)
	for i := range blocks {
		d.WaitForLog(fmt.Sprintf("(?m)^block %d has run$", i))
	}
	for _, name := range []string{"stream.txt", "connected.txt"} {
		if stream := string(testkit.Must(os.ReadFile(filepath.Join(work, name)))); !strings.HasSuffix(strings.TrimSpace(stream), "[DONE]") {
			t.Errorf("the stream in %s was cut: it ends with %q", name, stream[max(0, len(stream)-300):])
		}
	}
	if !regexp.MustCompile(`(handoff|reprompt) +│ done`).MatchString(d.Log.String()) {
		t.Error("no request migrated")
	}
}

// adapter returns a function that reads a file of deploy/vllm for the tests' model and for free ports, the same in all
// files.
func adapter(t *testing.T) func(name string) string {
	ports := map[string]string{}
	other := strings.NewReplacer("meta-llama/Llama-3.1-8B-Instruct", model, "context: 131072", fmt.Sprint("context: ", context), "--context 131072", fmt.Sprint("--context ", context),
		`"kv_role": "kv_both",`, `"kv_role": "kv_both", "kv_buffer_device": "cpu",`)
	return func(name string) string {
		text := string(testkit.Must(os.ReadFile(filepath.Join("../../../../deploy/vllm", name))))
		return other.Replace(localPort.ReplaceAllStringFunc(text, func(match string) string {
			m := localPort.FindStringSubmatch(match)
			if ports[m[2]] == "" {
				_, ports[m[2]], _ = strings.Cut(loopback.Addresses(t, 1)[0], ":")
			}
			return m[1] + ports[m[2]]
		}))
	}
}
