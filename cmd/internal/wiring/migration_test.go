package wiring

import (
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/outlier"
	"github.com/cascadeinfer/cascade/policies/refine"
)

// TestPresetMarket: "paper" is the paper's market, and only there are
// boundaries refined.
func TestPresetMarket(t *testing.T) {
	plain, paper := load(t, "speed: 4\nmigration: {link_gbps: 100}\n"), load(t, "preset: paper\n")
	r, err := plain.Replica("r1")
	if err != nil {
		t.Fatal(err)
	}
	market := plain.Market(r, nil)
	c := market.Machine
	if market.Self != "r1" || c.Sample != 8 || c.MaxConcurrentSends != 4 || c.MaxConcurrentReceives != 4 || c.Selector != nil {
		t.Errorf("default: %+v", c)
	}
	if rate := plain.Executor(r, nil).LinkRate; rate != 50e9 {
		t.Errorf("100 Gbit/s at speed 4 are %v bytes/s", rate)
	}
	if d := market.Detector.(outlier.Detector); d.Percent != outlierPercent || market.Refiner != nil {
		t.Errorf("default: %+v, %+v", d, market.Refiner)
	}
	market = paper.Market(r, nil)
	c = market.Machine
	if c.Sample != bidask.AskAll || c.MaxConcurrentSends != 3 || c.MaxConcurrentReceives != 3 || c.Selector != (bidask.Paper{}) {
		t.Errorf("paper: %+v", c)
	}
	if market.Refiner != (refine.Paper{}) || paper.Rules().Refine != "on" {
		t.Errorf("paper: %+v", market.Refiner)
	}
	if f := load(t, "planner: {refine: on}\n"); f.Market(r, nil).Refiner != (refine.Weighted{}) || f.Rules().Refine != "on" || plain.Rules().Refine != "off" {
		t.Errorf("planner.refine: %+v", f.Planner)
	}
}

// TestBlocksPathIsRelativeToFile: like every path of the file.
func TestBlocksPathIsRelativeToFile(t *testing.T) {
	f := load(t, "")
	r := f.Fleet.Replicas[0]
	if got := f.Blocks(r); got != "" {
		t.Errorf("none: %q", got)
	}
	r.Blocks = "run/r0"
	if got, want := f.Blocks(r), filepath.Join(f.Dir, "run/r0"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
