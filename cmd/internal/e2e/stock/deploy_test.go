package stock

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

var (
	shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")
	// localPort matches a port of this host: in an address, and as an argument or variable of vLLM.
	localPort = regexp.MustCompile(`(127\.0\.0\.1:|--port |CHANNEL_PORT=)([0-9]+)`)
)

// supervise is the function of shims that runs a program. If it fails, so does the script, at once and with the
// program's output: a loop of the README that waits for a daemon would otherwise wait for one that has failed.
const supervise = `supervise() {
	"$@" &
	child=$!
	trap 'kill $child; wait $child; exit' TERM
	wait $child || { echo "$* ended with code $?"; kill -KILL 0; }
}
`

// realShims and emulatedShims are programs before those of the same name in the path: what vLLM needs on CPUs, or the
// emulator in its place, and a smaller grid of measurements.
var realShims = map[string]string{
	"vllm": `if [ "$1" = serve ]; then
	set -- "$@" --dtype float32 --max-model-len 4096 --block-size 32 --num-gpu-blocks-override 1024 --max-num-seqs 8 --max-num-batched-tokens 4096 \
		--enforce-eager --distributed-executor-backend uni
fi
supervise "$INSTALLED/bin/vllm" "$@"`,
	"cascade": `if [ "$1 $2" = "profile measure" ]; then set -- "$@" --lengths 100:1600 --max-batch 4 --seconds 3s; fi
supervise "$CASCADE" "$@"`,
	"envoy": envoyShim,
}

const envoyShim = `supervise "$ENVOY" "$@"`

var emulatedShims = map[string]string{
	"vllm": `kv=
if [ -n "$CASCADE_KV_DIR" ]; then kv="--kv-socket $CASCADE_KV_DIR"; fi
model=$2 listen=$4:$6 events=
while [ $# -gt 0 ]; do
	if [ "$1" = --kv-events-config ]; then events=$2; fi
	shift
done
supervise "$CASCADE" engine --model "$model" --context 4096 --speed 2 --listen "$listen" $kv --kv-events-config "$events"`,
	"cascade": `if [ "$1 $2" = "profile measure" ]; then set -- "$@" --lengths 100:1600 --max-batch 4 --output 16 --seconds 500ms; fi
supervise "$CASCADE" "$@"`,
	"envoy": envoyShim,
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
	testkit.Tool(t, "curl")
	work, err := os.MkdirTemp("", "vllm")
	testkit.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(work) })
	adapt := adapter(t)
	for _, name := range []string{"fleet.yaml", "kv-transfer.json", "kv-transfer-cascade.json", "cascade_connector.py"} {
		testkit.NoError(t, os.WriteFile(filepath.Join(work, name), []byte(adapt(name)), 0o600))
	}
	testkit.NoError(t, os.Symlink(modelDir, filepath.Join(work, model)))
	script := ""
	blocks := shellBlock.FindAllStringSubmatch(adapt("README.md"), -1)
	for i, b := range blocks {
		script += fmt.Sprintf("%s\necho block %d has run\n", b[1], i)
	}
	if len(blocks) < 6 {
		t.Fatalf("the README has only %d blocks of commands", len(blocks))
	}
	d := startScript(t, work, script, shims, append(env, "CASCADE="+cascade, "ENVOY="+envoy))
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

// startScript starts a script for bash in a directory, with shims of programs, until the end of the test at the latest.
func startScript(t *testing.T, dir, script string, shims map[string]string, env []string) *harness.Daemon {
	t.Helper()
	bash := testkit.Tool(t, "bash")
	testkit.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o700))
	for name, shim := range shims {
		testkit.NoError(t, os.WriteFile(filepath.Join(dir, "bin", name), []byte("#!/bin/sh\n"+supervise+shim+"\n"), 0o700))
	}
	script = "cd " + dir + "\nPATH=" + dir + "/bin:$PATH\nset -ex\ntrap 'kill -KILL 0' ERR\n" + script // or else children keep the log open
	file := filepath.Join(dir, "script.sh")
	testkit.NoError(t, os.WriteFile(file, []byte(script), 0o600))
	return harness.Command{Binary: bash, Args: []string{file}, Group: true, Env: env}.Start(t)
}

// TestFailedDaemon checks that a script ends when a daemon fails for which it waits, and shows the daemon's output.
func TestFailedDaemon(t *testing.T) {
	t.Parallel()
	const script = "envoy &\nuntil false; do sleep 0.1; done\n"
	d := startScript(t, t.TempDir(), script, map[string]string{"envoy": `supervise sh -c "echo cannot bind; exit 3"`}, nil)
	testkit.WaitFor(t, "the script to end", func() bool { return !d.Running() })
	for _, want := range []string{"cannot bind", "ended with code 3"} {
		if !strings.Contains(d.Log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, d.Log)
		}
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
				_, ports[m[2]], _ = strings.Cut(testkit.Addresses(t, 1)[0], ":")
			}
			return m[1] + ports[m[2]]
		}))
	}
}
