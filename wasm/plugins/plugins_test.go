package plugins_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/guesttest"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// mostBytes bounds a plugin. A dependency on fmt or reflect would add a megabyte
// and more.
const mostBytes = 2100 << 10

// plugins has all plugins with their native policies, without configuration and with it.
var plugins = []struct {
	name   string
	kinds  []abi.Kind
	plain  any
	config string
	set    any
}{
	{"partition-exact", []abi.Kind{abi.Partition}, partition.Exact{Slack: partition.DefaultSlack}, "", nil},
	{"partition-recursion", []abi.Kind{abi.Partition}, partition.Recursion{}, "", nil},
	{"partition-two-phase", []abi.Kind{abi.Partition}, partition.TwoPhase{}, "", nil},
	{"partition-paper", []abi.Kind{abi.Partition}, partition.TwoPhase{Objective: partition.Snapshot}, "", nil},
	{"refine-weighted", []abi.Kind{abi.Configure, abi.Refine}, partition.WeightedRefiner{}, "smoothing 900\nfreeze 1", partition.WeightedRefiner{Damping: partition.Damping{Smoothing: 900, Freeze: 1}}},
	{"refine-paper", []abi.Kind{abi.Configure, abi.Refine}, partition.PaperRefiner{}, "smoothing 900\nfreeze 1", partition.PaperRefiner{Damping: partition.Damping{Smoothing: 900, Freeze: 1}}},
	{"bid-least-load", []abi.Kind{abi.Configure, abi.Quote, abi.Select}, market{bidask.Backlog{}, bidask.LeastLoad{}}, "quantum 7\nthroughput 1000",
		market{bidask.Backlog{Quantum: 7, Throughput: 1000}, bidask.LeastLoad{}}},
	{"bid-paper", []abi.Kind{abi.Configure, abi.Quote, abi.Select}, market{bidask.Backlog{}, bidask.Paper{}}, "keep 1", market{bidask.Backlog{}, bidask.Paper{Keep: 1}}},
	{"outlier", []abi.Kind{abi.Configure, abi.Outlier}, bidask.Detector{}, "percent 80 # not 25", bidask.Detector{Percent: 80}},
	{"place-paper", []abi.Kind{abi.Configure, abi.Place}, place.Policy{}, "queue 500\nprefix 10", place.Policy{Queue: 500, Prefix: 10}},
	{"place-cheapest", []abi.Kind{abi.Place}, place.Cheapest{}, "", nil},
}

// market combines the two policies for bids.
type market struct {
	policies.Quoter
	policies.Selector
}

// TestPluginsDecideAsNative compares each policy with its module.
func TestPluginsDecideAsNative(t *testing.T) {
	for _, p := range plugins {
		t.Run(p.name, func(t *testing.T) {
			code := guesttest.Build(t, p.name+".go")
			if len(code) > mostBytes {
				t.Errorf("the module has %d bytes, at most %d are expected", len(code), mostBytes)
			}
			m := guesttest.Load(t, code, host.Config{})
			if kinds := m.Kinds(); !reflect.DeepEqual(kinds, p.kinds) {
				t.Fatalf("the module decides %v, want %v", kinds, p.kinds)
			}
			guesttest.Compare(t, guesttest.Start(t, m), p.plain)
			if m.Decides(abi.Select) {
				costTheSame(t, guesttest.Start(t, m))
			}
			if p.config == "" {
				return
			}
			g := guesttest.Start(t, m)
			var fault *host.Fault
			if err := g.Configure(abi.Call{}, []byte("nonsense 1")); !errors.As(err, &fault) || fault.Cause != host.Refused || fault.Text != `line 1: "nonsense": unknown setting` {
				t.Errorf("a setting that there is not: %v", err)
			}
			testkit.NoError(t, g.Configure(abi.Call{}, []byte(p.config)))
			guesttest.Compare(t, g, p.set)
		})
	}
}
