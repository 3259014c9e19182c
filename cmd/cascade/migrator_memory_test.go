//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/xds/control"
)

// TestMigratorMemory logs the memory of a migrator's process without modules and with four of the
// built-in ones. It runs with CASCADE_TEST_ALL=1 only.
func TestMigratorMemory(t *testing.T) {
	testkit.SkipSlow(t)
	testkit.SkipUnderRace(t)
	dir, root := t.TempDir(), filepath.Join("..", "..")
	program := filepath.Join(dir, "cascade")
	if said, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	command := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		return cmd
	}
	do := func(args ...string) {
		t.Helper()
		if said, err := command(args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", args, err, said)
		}
	}
	do("policy", "keygen", "ops")
	slots := map[string]string{"bid-least-load": "bid-select", "outlier": "outlier", "place-paper": "place", "refine-weighted": "refine"}
	for name := range slots {
		file := filepath.Join(dir, name+".wasm")
		code := hosttest.Build(t, filepath.Join(root, "wasm", "plugins", name+".go"))
		testkit.NoError(t, os.WriteFile(file, code, 0o600))
		do("policy", "sign", file, "--key", "ops.key", "--name", name, "--version", "1.0.0")
	}
	at := testkit.Addresses(t, 7)
	fleet := fmt.Sprintf(`preset: paper
models: [{name: llama, context: 8192, profile: h200-llama-3.1-8b, kv_tokens: 65536}]
replicas: [{id: r0, address: %q, peer: %q, engine: "http://%s", admin: %q}]
control: {listen: %q, admin: %q}
proxy: {listen: %q}
policies: {keys: [ops.pub]}
`, at[0], at[1], at[2], at[3], at[4], at[5], at[6])
	testkit.NoError(t, os.WriteFile(filepath.Join(dir, "fleet.yaml"), []byte(fleet), 0o600))
	start := func(name string, args ...string) *exec.Cmd {
		t.Helper()
		cmd, said := command(append([]string{name, "-c", "fleet.yaml"}, args...)...), new(bytes.Buffer)
		cmd.Stdout, cmd.Stderr = said, said
		testkit.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Wait() // the test's context has ended it, or the test
			if t.Failed() {
				t.Logf("%s:\n%s", name, said)
			}
		})
		return cmd
	}
	start("control")
	start("engine", "--replica", "r0")
	migrator := start("migrator", "--replica", "r0")
	report := func(what string) {
		t.Helper()
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", migrator.Process.Pid))
		testkit.NoError(t, err)
		t.Logf("%s: %s", what, strings.Join(strings.Fields(strings.Join(regexp.MustCompile(`(?m)^Vm(RSS|HWM):.*$`).FindAllString(string(text), -1), ", ")), " "))
	}
	awaitURL(t, "http://"+at[3]+"/readyz", "ready")
	awaitURL(t, "http://"+at[5]+"/readyz", "ready")
	report("native")
	for name, slot := range slots {
		do("policy", "push", name+".wasm", "--goal", "stable", "--control", "http://"+at[5])
		awaitURL(t, "http://"+at[5]+"/policies?slot="+slot, `"active": [1-9]`)
	}
	report("when four modules were compiled")
	testkit.NoError(t, migrator.Process.Signal(syscall.SIGTERM))
	_ = migrator.Wait()
	ended := time.Now()
	migrator = start("migrator", "--replica", "r0")
	for every := time.NewTicker(tick); ; <-every.C {
		var now control.Policies
		testkit.NoError(t, json.Unmarshal([]byte(awaitURL(t, "http://"+at[5]+"/policies", "")), &now))
		decide := 0
		for _, slot := range now.Slots {
			for _, l := range slot.Nodes[len(slot.Nodes)-1].Modules { // r0 comes behind control planes
				if l.Phase == lifecycle.Active && l.SinceUnixMillis > ended.UnixMilli() {
					decide++
				}
			}
		}
		if decide == len(slots)+1 { // bids have two slots
			break
		}
	}
	report("when it begins with four modules")
}
