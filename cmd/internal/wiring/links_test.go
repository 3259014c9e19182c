package wiring

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies/links"
)

const twoHosts = `- {id: n0, host: a, address: "127.0.0.1:9010", peer: "127.0.0.1:9110", engine: "http://127.0.0.1:8010", tp: 2}
- {id: n1, host: a, address: "127.0.0.1:9011", peer: "127.0.0.1:9111", engine: "http://127.0.0.1:8011", tp: 2}
- {id: n2, host: b, address: "127.0.0.1:9012", peer: "127.0.0.1:9112", engine: "http://127.0.0.1:8012", tp: 2}
`

// TestLinks: a host's own rate reaches the planner and the migrators, where it is the
// faster one, at any speed of the fleet.
func TestLinks(t *testing.T) {
	for _, speed := range []float64{1, 20} {
		f := load(t, twoHosts+fmt.Sprintf("speed: %v\nmigration: {link_gbps: 100, host_gbps: 3200}\n", speed))
		if got, want := f.Links(), (links.Rates{SameHost: 400e9, BetweenHosts: 12.5e9, MaxBetweenHosts: 12.5e9}); got != want {
			t.Errorf("migrators have %+v, want %+v", got, want)
		}
		r, err := f.Replica("n0")
		if err != nil {
			t.Fatal(err)
		}
		// Replicas of the model that have fewer ranks set the planner's.
		p := f.Profiles["m"].TensorParallel(1)
		if got, want := f.TokenBytes(r), float64(f.Profiles["m"].TensorParallel(2).KVBytesPerToken); got != want {
			t.Errorf("a token of n0 has %v bytes, want %v", got, want)
		}
		m := f.Rules().Models[0]
		if m.Transfer != p.Transfer() {
			t.Errorf("without links a hand-over costs %+v, want %+v", m.Transfer, p.Transfer())
		}
		// The profile's link is that of the planner, who lives at the fleet's speed.
		if got, want := m.TokenBytes/float64(m.Links.BetweenHosts), p.Transfer().PerToken; math.Abs(got/want-1) > 1e-6 {
			t.Errorf("speed %v: between hosts a token takes %v s, want %v", speed, got, want)
		}
		if got, want := m.TokenBytes/float64(m.Links.SameHost), float64(p.KVBytesPerToken)/400e9/speed; math.Abs(got/want-1) > 1e-6 {
			t.Errorf("speed %v: on a host a token takes %v s, want %v", speed, got, want)
		}
		if m.Links.MaxBetweenHosts != 12.5e9 {
			t.Errorf("between hosts the planner believes %v at most", m.Links.MaxBetweenHosts)
		}
	}
	for _, more := range []string{"", "migration: {link_gbps: 100, host_gbps: 50}\n"} {
		f := load(t, twoHosts+more)
		if l, m := f.Links(), f.Rules().Models[0].Links; l.SameHost != l.BetweenHosts || m.SameHost != m.BetweenHosts {
			t.Errorf("%q: hosts make a difference: %+v, %+v", more, l, m)
		}
	}
	f := load(t, twoHosts+"preset: paper\nmigration: {host_gbps: 3200}\n")
	if m := f.Rules().Models[0]; f.UsesDistance() || m.TokenBytes != 0 || m.Links != (links.Rates{}) {
		t.Errorf("the paper's preset knows links: %+v", m)
	}
}

// TestTopology reads machines, and says what is wrong with their files.
func TestTopology(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("a.json", `{"machine": {"name": "a", "gpus": [{"index": 3, "uuid": "u"}]}, "pairs": []}`)
	write("bc.json", `{"machines": [{"name": "b"}, {"name": "c"}]}`)
	write("none.json", `{}`)
	write("nameless.json", `{"machines": [{}]}`)
	write("text.json", `no`)
	base := load(t, "")
	resolve := func(files ...string) (Fleet, error) {
		file := base.Fleet
		file.Topology = files
		return Resolve(file, dir)
	}
	f, err := resolve("a.json", "bc.json")
	if err != nil || len(f.Machines) != 3 || f.Machines["a"].GPU(3) == nil {
		t.Errorf("%v, %v", f.Machines, err)
	}
	for want, files := range map[string][]string{
		"topology[1]":                    {"a.json", "absent.json"},
		`machine "a" is described twice`: {"a.json", "a.json"},
		"describes no machine":           {"none.json"},
		"has no name":                    {"nameless.json"},
		"text.json: invalid":             {"text.json"},
	} {
		if _, err := resolve(files...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", files, err, want)
		}
	}
}
