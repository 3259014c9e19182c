package processes

import (
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// planes runs a test on both data planes.
func planes(t *testing.T, test func(t *testing.T, envoy bool)) {
	t.Parallel()
	t.Run("proxy", func(t *testing.T) { t.Parallel(); test(t, false) })
	t.Run("envoy", func(t *testing.T) { t.Parallel(); envoytest.Binary(t); test(t, true) })
}

// TestRollingUpgrade replaces every process of every replica under load, first
// the migrators, each by a new one beside it, then the engines, each once it is
// drained: no request fails and no stream is cut.
func TestRollingUpgrade(t *testing.T) {
	planes(t, func(t *testing.T, envoy bool) {
		f := newFleet(t, setup{envoy: envoy, replicas: 3})
		o := newOracle(f)
		load := newTraffic(f, o, "http://"+f.file.Proxy.Listen, kind{workers: 10, words: []int{40, 200, 800}, output: 250})
		load.after(10)

		for _, r := range f.replicas {
			old := r.migrator
			r.startMigrator()
			old.wait()
			if out := old.out.String(); !strings.Contains(out, "another process has taken over") {
				t.Errorf("the migrator of %s ends by itself: %s", r.ID, out)
			}
			f.awaitURL("http://"+r.Admin+"/readyz", "ready")
			r.awaitServing()
		}
		load.after(10)

		for _, r := range f.replicas {
			f.cascade("drain", r.ID, "--wait", "--timeout", patience.String())
			r.engine.end()
			r.startEngine()
			f.awaitURL("http://"+r.Admin+"/readyz", "ready")
			f.cascade("undrain", r.ID)
			r.awaitServing()
		}
		load.after(10)
		load.stop()
		load.report()
		if f.tally() == 0 {
			t.Error("nothing moved")
		}
		f.awaitEmpty(f.replicas...)
	})
}

// TestUpgradeAmidMoves replaces the migrators of fronts, sources and targets
// while requests hop between replicas by drains: each stream belongs to a
// process that is replaced while another replica generates for it.
func TestUpgradeAmidMoves(t *testing.T) {
	t.Parallel()
	f := newFleet(t, setup{replicas: 3})
	load := newTraffic(f, newOracle(f), "http://"+f.file.Proxy.Listen, kind{workers: 8, words: []int{40, 400}, output: 400})
	load.after(4)
	for _, r := range f.replicas {
		// Its clients' requests go on elsewhere, and it is their front.
		f.order("drain", r.ID)
		f.awaitStatus(r.ID+" is empty", func(s control.Status) bool { n := find(s, r.ID); return n != nil && n.Residents == 0 })
		old := r.migrator
		r.startMigrator()
		f.order("undrain", r.ID)
		old.wait()
		r.awaitServing()
	}
	load.stop()
	load.report()
	if f.tally() == 0 {
		t.Error("nothing moved")
	}
	f.awaitEmpty(f.replicas...)
}
