package inprocess

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// starve takes the CPU away from everything else for a while, except for one share in busy+1.
func starve(busy int, d time.Duration) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var over atomic.Bool
	var wg sync.WaitGroup
	for range busy {
		wg.Go(func() {
			for !over.Load() {
			}
		})
	}
	time.Sleep(d)
	over.Store(true)
	wg.Wait()
}

// TestStarved checks that a host that stalls for seconds, repeatedly, only makes the fleet slow. No
// component counts as failed in a way that fails a request.
func TestStarved(t *testing.T) {
	testkit.SkipSlow(t)
	hard := []int{4, 8, 16, 32, 64, 128}
	planes(t, onBoth, func(t *testing.T, envoy string) {
		r := newMigratingFleet(t, envoy, config.MigrationLive, 3, func(f *config.Fleet) { f.Speed = 1 })
		r.teachShapes()
		streams := r.startScattered()
		load := r.newLoad(6, 20, 200, 2000)
		load.WaitForRequests(6)
		for i, busy := range hard {
			id := []string{"r0", "r1", "r2"}[i%3]
			r.Order("drain", id)
			starve(busy, 2*time.Second)
			r.Order("undrain", id)
		}
		load.WaitForRequests(6)
		load.Stop()
		load.Report()
		for _, s := range streams {
			r.WaitForGrowth(s)
		}
		for _, s := range streams {
			r.RequireTexts(s)
		}
		r.tally()
	})
}
