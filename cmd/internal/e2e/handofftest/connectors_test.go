package handofftest_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/handofftest"
	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// startSocketEngines runs two emulated engines of a configuration, with connectors that stage so many blocks, 0 for as
// many as their caches have. It returns them, their base URLs and the directories of their sockets.
func startSocketEngines(t *testing.T, c emulator.Config, slots int) (engines [2]*emulator.Engine, urls, dirs [2]string) {
	top := testkit.Must(os.MkdirTemp("", "kv")) // the path of t.TempDir is too long for sockets
	t.Cleanup(func() { os.RemoveAll(top) })
	for i := range urls {
		dirs[i] = filepath.Join(top, string(rune('a'+i)))
		if c.Profile.Name == "" {
			c.Profile = profile
		}
		c.Model, c.BlockTokens, c.SlotBytes, c.KVSocket = "tiny", 32, 512, &emulator.KVSocket{Dir: dirs[i], Slots: slots}
		e := testkit.Must(emulator.New(c))
		t.Cleanup(testkit.Run(t, e.Run))
		engines[i], urls[i] = e, serveEngine(t, e)
		testkit.WaitFor(t, "the socket", func() bool {
			c, err := net.Dial("unix", filepath.Join(dirs[i], api.Socket))
			if err == nil {
				c.Close()
			}
			return err == nil
		})
	}
	return engines, urls, dirs
}

// newConnectedPair runs two emulated engines with connectors, and front ends for them.
func newConnectedPair(t *testing.T, ec emulator.Config, slots int) (*handofftest.Pair, *handofftest.Connectors, [2]*emulator.Engine) {
	engines, urls, dirs := startSocketEngines(t, ec, slots)
	var log testkit.Log
	c := handofftest.NewConnectors(t, dirs, 0, &log)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("connectors:\n%s", &log)
		}
	})
	return handofftest.New(t, "tiny", urls, c.Edit), c, engines
}

// TestConnector hands streams over by Cascade's own connector: the target computes nothing.
func TestConnector(t *testing.T) {
	t.Parallel()
	p, c, _ := newConnectedPair(t, emulator.Config{}, 0)
	for i, n := range []int{95, 96, 97, 1000, 3000} {
		before := p.Sources(1 - i%2)
		requireMoves(t, p, handofftest.Stream{At: i % 2, Prompt: ids(uint64(i), n), Output: 10_000, After: 50, Moves: []int{20}}, true)
		if got := p.Sources(1 - i%2).Sub(before); got.Computed != 0 || got.Fetched == 0 {
			t.Errorf("%d tokens: the target got %+v", n, got)
		}
	}
	for i, client := range c.Clients {
		if s := client.Stats(); s.Fetched == 0 || s.Failed != 0 || s.Taken != s.Offered || s.Sessions != 1 {
			t.Errorf("r%d: %+v", i, s)
		}
	}
}

// TestConnectorAtBlockEdges hands streams over at the edges of blocks.
func TestConnectorAtBlockEdges(t *testing.T) {
	t.Parallel()
	p, c, _ := newConnectedPair(t, emulator.Config{}, 0)
	handofftest.PlayBlockEdges(t, "tiny", p.Engines, 32, func(f *frontend.Config) { c.Edit(f); f.HealthInterval = 20 * time.Millisecond })
}

// TestConnectorFaults breaks transfers between emulated engines.
func TestConnectorFaults(t *testing.T) {
	t.Parallel()
	_, urls, dirs := startSocketEngines(t, emulator.Config{}, 0)
	handofftest.PlayConnectorFaults(t, "tiny", urls, dirs, nil)
}

// TestFullStagingMemory: KV that does not fit into the staging memory is computed.
func TestFullStagingMemory(t *testing.T) {
	t.Parallel()
	p, c, _ := newConnectedPair(t, emulator.Config{}, 3)
	before := p.Sources(1)
	requireMoves(t, p, handofftest.Stream{Prompt: ids(4, 3000), Output: 10_000, After: 50, Moves: []int{20}}, true)
	if s, got := c.Clients[1].Stats(), p.Sources(1).Sub(before); s.Fetched != 0 || got.Computed < 3000 {
		t.Errorf("%+v, the target got %+v", s, got)
	}
}

// TestNullFromConnector: an engine whose connector is known, but that hands nothing over for once, is asked again.
func TestNullFromConnector(t *testing.T) {
	t.Parallel()
	p, _, engines := newConnectedPair(t, emulator.Config{}, 0)
	for i, f := range []emulator.Faults{{NoTransferParams: true}, {}} {
		testkit.NoError(t, engines[0].SetFaults(f))
		requireMoves(t, p, handofftest.Stream{Prompt: ids(uint64(i), 1000), Output: 10_000, After: 50, Moves: []int{20}}, i == 1)
	}
}

// TestKVSocket speaks with emulated engines as their migrators do.
func TestKVSocket(t *testing.T) {
	t.Parallel()
	_, urls, dirs := startSocketEngines(t, emulator.Config{}, 0)
	handofftest.PlayKVSocket(t, "tiny", urls, dirs, 32)
}
