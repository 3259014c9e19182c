package stock

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

const (
	// routersFlags is the environment variable with the flags of "cascade-lab routers" for a measurement ("make bench-lab WHAT=routers-vllm").
	// Without it a few requests show that the measurement works.
	routersFlags = "CASCADE_BENCH_ROUTERS"
	// longest is the longest request of a trace, in words: a word is 2.3 to 3.1 tokens of the tiny model.
	longest = context / 4
)

// TestRouters replays the same requests through Cascade and through vLLM's own router in front of the same two engines.
// The engines have no KV connector, with which an idle engine uses a whole core, so streams migrate by re-prompting.
func TestRouters(t *testing.T) {
	installed(t) // or the routers need not be there
	router := wheel(t, "routers/bin/python")
	engines := newEngines(t, 2, options{env: []string{"VLLM_SERVER_DEV_MODE=1"}}) // has /reset_prefix_cache
	dir := t.TempDir()
	lab, tiny := filepath.Join(dir, "cascade-lab"), filepath.Join(dir, "tiny.json")
	if out, err := exec.Command("go", "build", "-C", filepath.Join(testkit.Root(t), "cmd", "cascade-lab"), "-o", lab, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	testkit.NoError(t, os.WriteFile(tiny, []byte(profile), 0o600))
	args := []string{"routers", "-engines", engines[0].URL + "," + engines[1].URL, "-speed", "1", "-model", model, "-context", fmt.Sprint(context), "-max-length", fmt.Sprint(longest),
		"-profile", tiny, "-contestants", "cascade,vllm-router-cache-aware", "-vllm-python", router, "-envoy", envoytest.Binary(t)}
	measured := strings.Fields(os.Getenv(routersFlags))
	if len(measured) == 0 {
		measured = []string{"-trace", "chat", "-requests", "12", "-rates", "4", "-seeds", "1", "-out", dir}
	}
	// It takes as long as its runs do, and ends with the engines.
	out, err := exec.CommandContext(t.Context(), lab, append(args, measured...)...).CombinedOutput()
	t.Logf("\n%s", out)
	testkit.NoError(t, err)
	if os.Getenv(routersFlags) != "" {
		return
	}
	var found struct {
		Summaries []struct {
			Contestant                   string
			Runs, Void, Requests, Failed int
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "results.json"))
	testkit.NoError(t, err)
	testkit.NoError(t, json.Unmarshal(text, &found))
	if len(found.Summaries) != 2 {
		t.Errorf("%s", text)
	}
	for _, s := range found.Summaries {
		if s.Runs+s.Void != 1 || s.Failed > 0 || s.Void == 0 && s.Requests < 8 {
			t.Errorf("%+v", s)
		}
	}
}

// wheel returns the path of a program that "make routers" installs.
func wheel(t *testing.T, name string) string {
	path, err := filepath.Abs(filepath.Join("../../../../.cache", name))
	testkit.NoError(t, err)
	if _, err := os.Stat(path); err != nil {
		testkit.Skip(t, testkit.Unavailable{What: name + " is not installed", Remedy: "run `make routers`", InCI: true})
	}
	return path
}
