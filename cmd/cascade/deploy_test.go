package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// TestDeploy checks the files under deploy: the fleet file is valid, and the Envoy bootstrap is what
// the command prints for it and what Envoy accepts.
func TestDeploy(t *testing.T) {
	dir := filepath.Join("..", "..", "deploy")
	fleet := filepath.Join(dir, "fleet.yaml")
	runCommand(t, "config", "check", fleet)
	want := string(testkit.Must(os.ReadFile(filepath.Join(dir, "envoy.json"))))
	if runCommand(t, "envoy-bootstrap", "-c", fleet, "--node-id", "edge-0") != want {
		t.Error("deploy/envoy.json is not what \"cascade envoy-bootstrap -c deploy/fleet.yaml --node-id edge-0\" prints; write it anew")
	}
	envoytest.Validate(t, want)
}

// TestDeployVLLM checks the fleet file of deploy/vllm, with a profile in place of the one that its README measures. The
// commands there are run by cmd/internal/e2e/stock.
func TestDeployVLLM(t *testing.T) {
	dir := t.TempDir()
	fleet := filepath.Join(dir, "fleet.yaml")
	testkit.NoError(t, os.WriteFile(fleet, testkit.Must(os.ReadFile(filepath.Join("..", "..", "deploy", "vllm", "fleet.yaml"))), 0o600))
	profile, err := json.Marshal(testkit.Must(cost.Builtin("h200-llama-3.1-8b")))
	testkit.NoError(t, err)
	testkit.NoError(t, os.WriteFile(filepath.Join(dir, "engine.json"), profile, 0o600))
	runCommand(t, "config", "check", fleet)
}

// TestDeployEtcd checks the lines of a fleet file in deploy/etcd.
func TestDeployEtcd(t *testing.T) {
	text := string(testkit.Must(os.ReadFile(filepath.Join("..", "..", "deploy", "etcd", "README.md"))))
	_, text, _ = strings.Cut(text, "```yaml\n")
	lines, _, found := strings.Cut(text, "```")
	file, err := config.Read(strings.NewReader(lines + watched))
	testkit.NoError(t, err)
	if members, prefix, ok := file.EtcdState(); !found || !ok || len(members) != 3 || prefix != "/cascade/fleet-a" || file.Etcd.User == "" {
		t.Errorf("members %q, prefix %q, %+v", members, prefix, file.Etcd)
	}
}
