package stock

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/handofftest"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// connectorHandoffs is how many moves testLengths must see with Cascade's connector.
const connectorHandoffs = 42

// withSocket returns the options of an engine with Cascade's connector, configured as in deploy/vllm.
func (o options) withSocket(dir string) options {
	folder := testkit.Must(filepath.Abs("../../../../deploy/vllm"))
	config := testkit.Must(os.ReadFile(filepath.Join(folder, "kv-transfer-cascade.json")))
	o.args = append([]string{"--kv-transfer-config", string(config)}, o.args...)
	o.env = append([]string{"CASCADE_KV_DIR=" + dir, "PYTHONPATH=" + folder, "PYTHONDONTWRITEBYTECODE=1"}, o.env...)
	return o
}

// socketDirs returns directories for the sockets of two engines.
func socketDirs(t *testing.T) (dirs [2]string) {
	top := testkit.Must(os.MkdirTemp("", "kv")) // the path of t.TempDir is too long for sockets
	t.Cleanup(func() { os.RemoveAll(top) })
	return [2]string{filepath.Join(top, "a"), filepath.Join(top, "b")}
}

// TestConnector hands running streams over between two unmodified engines with Cascade's connector: the KV travels over
// Cascade's transports, and what the client reads is the engine's own answer, also if KV does not arrive.
func TestConnector(t *testing.T) {
	dirs := socketDirs(t)
	engines := newEngines(t, 2, options{sockets: dirs[:]})
	urls := [2]string{engines[0].URL, engines[1].URL}
	t.Run("protocol", func(t *testing.T) { handofftest.PlayKVSocket(t, model, urls, dirs, block) })
	t.Run("moves", func(t *testing.T) {
		var log testkit.Log
		c := handofftest.NewConnectors(t, dirs, 0, &log)
		edit := func(f *frontend.Config) { patient(f); c.Edit(f) }
		testLengths(t, urls, connectorHandoffs, edit)
		handofftest.PlayBlockEdges(t, model, urls, block, edit)
		for i, client := range c.Clients {
			if s := client.Stats(); s.Fetched == 0 || s.Failed != 0 || s.Sessions != 1 {
				t.Errorf("r%d: %+v\n%s", i, s, &log)
			}
		}
	})
	t.Run("prefix pulls", func(t *testing.T) {
		var log testkit.Log
		c := handofftest.NewConnectors(t, dirs, 0, &log)
		handofftest.PlayPrefixPulls(t, model, urls, func(f *frontend.Config) { patient(f); c.Edit(f) })
		for i, client := range c.Clients {
			if s := client.Stats(); s.Fetched < 2 || s.Failed != 0 {
				t.Errorf("r%d: %+v\n%s", i, s, &log)
			}
		}
	})
	t.Run("faults", func(t *testing.T) { handofftest.PlayConnectorFaults(t, model, urls, dirs, patient) })
	for _, e := range engines {
		if !e.Running() {
			t.Errorf("%s has died:\n%s", e.URL, e.Log)
		}
	}
}
