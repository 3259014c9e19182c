//go:build ignore

// Command refine-weighted is the module of policies/partition.WeightedRefiner. Its settings are
// "smoothing" and "freeze", see partition.Damping.
package main

import (
	policy "github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/wasm/guest/configure"
	"github.com/cascadeinfer/cascade/wasm/guest/refine"
)

type plugin struct{ policy.WeightedRefiner }

func (p *plugin) Configure(config []byte) error {
	return configure.ReadSettings(config,
		configure.Field{Name: "smoothing", Set: func(v int64) { p.Smoothing = int(v) }, High: 1000},
		configure.Field{Name: "freeze", Set: func(v int64) { p.Freeze = int(v) }, High: 1 << 20})
}

func init() {
	p := &plugin{}
	configure.Register(p)
	refine.Register(p)
}

func main() {}
