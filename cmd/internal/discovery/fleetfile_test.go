package discovery

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

const baseText = `# the fleet
control:
  any_removal: true
models:
- name: m
  context: 4096
  profile: h200-llama-3.1-8b
`

func fleetFile(t *testing.T, base string) FleetFile {
	dir := t.TempDir()
	f := FleetFile{Base: filepath.Join(dir, "base.yaml"), Path: filepath.Join(dir, "fleet.yaml")}
	testkit.NoError(t, os.WriteFile(f.Base, []byte(base), 0o600))
	return f
}

// decide decides from Pods alone, for Pods that listen on port 9000.
func decide(base config.Fleet, before []config.Replica, pods ...Pod) (Decision, error) {
	return Decide(Rules{Base: base, PeerPort: 9100, EnginePort: 8000}, Cluster{Source: "Service s", Port: 9000, Pods: pods}, before)
}

// TestFleetFile writes decisions and reads them back. Variables of the base are read by what the environment says, and
// written as they are, for the control plane that reads the file in its own environment.
func TestFleetFile(t *testing.T) {
	t.Setenv("CONTROL_SERVICE_IP", "127.0.0.9")
	baseText := strings.Replace(baseText, "any_removal: true", "any_removal: true\n  peers: ['[${CONTROL_SERVICE_IP}]:18000']", 1) + "state: state\n"
	f := fleetFile(t, baseText)
	none, err := f.Replicas()
	if err != nil || none != nil {
		t.Fatalf("before the first write: %v, %v", none, err)
	}
	text, base, err := f.ReadBase()
	testkit.NoError(t, err)
	if len(base.Control.Peers) != 1 || !strings.Contains(base.Control.Peers[0], "127.0.0.9") {
		t.Errorf("peers %q", base.Control.Peers)
	}
	d, err := decide(base, nil,
		Pod{Name: "a", UID: "1", Node: "n", IP: "127.0.0.2", Ready: true, Settings: map[string]string{Prefix + "batch": "8"}},
		Pod{Name: "b", UID: "2", Node: "n", IP: "127.0.0.3", Ready: true, Settings: map[string]string{Prefix + "drain": "true"}},
	)
	testkit.NoError(t, err)
	for i, want := range []int{1, 2, 2} { // the last time there is nothing to write
		if written, err := f.Write(text, d.Replicas[:want]); err != nil || written != (i < 2) {
			t.Fatalf("write %d: written %v, %v", i, written, err)
		}
	}
	got, err := f.Replicas()
	testkit.NoError(t, err)
	if len(got) != 2 || !sameSettings(got[0], d.Replicas[0]) || !sameSettings(got[1], d.Replicas[1]) || !got[1].Drain {
		t.Errorf("wrote %+v, read %+v", d.Replicas, got)
	}
	written, err := os.ReadFile(f.Path)
	if err != nil || !strings.HasPrefix(string(written), baseText) {
		t.Errorf("the text of the base is not kept (%v):\n%s", err, written)
	}
	// A decision from what was read back is the same.
	again, err := decide(base, got)
	if err != nil || again.Pods[0].State != Kept || again.Replicas[0].Address != "127.0.0.2:9000" {
		t.Errorf("without Pods: %+v, %v", again, err)
	}
}

func TestFleetFileRefuses(t *testing.T) {
	for name, c := range map[string]struct{ base, want string }{
		"has replicas":    {baseText + "replicas: []\n", "base.yaml: line 8: replicas: must be absent"},
		"guards removals": {strings.Replace(baseText, "any_removal: true", "soak: 1s", 1), "control.any_removal: must be true"},
		"unknown field":   {baseText + "colour: blue\n", "unknown field"},
		"bad field":       {baseText + "speed: -1\n", "base.yaml: line 8: speed"},
		"no models":       {"control: {any_removal: true}\n", "models: name at least one model"},
		"too large":       {"# " + strings.Repeat("x", maxBase), "larger than 1 MiB"},
	} {
		_, _, err := fleetFile(t, c.base).ReadBase()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	// A base to which nothing can be appended.
	f := fleetFile(t, "{models: [{name: m, context: 4096, profile: h200-llama-3.1-8b}], control: {any_removal: true}}")
	text, base, err := f.ReadBase()
	testkit.NoError(t, err)
	d, err := decide(base, nil, Pod{Name: "a", UID: "1", Node: "n", IP: "127.0.0.2", Ready: true})
	testkit.NoError(t, err)
	if _, err := f.Write(text, d.Replicas); err == nil || !strings.Contains(err.Error(), "base.yaml completed with 1 replicas") {
		t.Errorf("written: %v", err)
	}
	if _, err := os.Stat(f.Path); err == nil {
		t.Error("a file that the control plane refuses was written")
	}
	testkit.NoError(t, os.WriteFile(f.Path, []byte("replicas: {"), 0o600))
	if _, err := f.Replicas(); err == nil {
		t.Error("a file that cannot be read has replicas")
	}
}

// TestManyPods checks that the limit of Pods is far from the limits of the file.
func TestManyPods(t *testing.T) {
	n := testkit.Size(500, MaxPods)
	f := fleetFile(t, baseText)
	text, base, err := f.ReadBase()
	testkit.NoError(t, err)
	var pods []Pod
	for i := range n {
		pods = append(pods, Pod{Name: fmt.Sprintf("p%d", i), UID: "0f1e2d3c-0000-0000-0000-000000000000", Node: "n", IP: fmt.Sprintf("127.%d.%d.1", i/250, i%250+1), Ready: true})
	}
	d, err := decide(base, nil, pods...)
	testkit.NoError(t, err)
	if _, err := f.Write(text, d.Replicas); err != nil || len(d.Replicas) != n {
		t.Errorf("%d replicas: %v", len(d.Replicas), err)
	}
	for len(pods) <= MaxPods {
		pods = append(pods, Pod{Name: "more"})
	}
	if _, err := decide(base, nil, pods...); err == nil || !strings.Contains(err.Error(), "at most 10000") {
		t.Errorf("too many: %v", err)
	}
}

// TestManyKinds checks that Pods of ever other settings cost a bounded number of validations.
func TestManyKinds(t *testing.T) {
	var pods []Pod
	for i := range maxKinds + 8 {
		pods = append(pods, Pod{Name: fmt.Sprintf("p%d", i), UID: "u", Node: "n", IP: fmt.Sprintf("10.0.0.%d", i+1), Ready: true, Settings: map[string]string{Prefix + "batch": fmt.Sprint(i + 1)}})
	}
	d, err := decide(fleetOf("m"), nil, pods...)
	if err != nil || len(d.Replicas) != maxKinds || d.Count(LeftOut) != 8 {
		t.Errorf("%d replicas, %d left out: %v", len(d.Replicas), d.Count(LeftOut), err)
	}
}
