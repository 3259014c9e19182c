// Command refine-paper is the module of policies/refine.Paper. Its settings are "smoothing"
// and "freeze", see refine.Damping.
package main

import (
	policy "github.com/cascadeinfer/cascade/policies/refine"
	"github.com/cascadeinfer/cascade/wasm/guest/configure"
	"github.com/cascadeinfer/cascade/wasm/guest/refine"
	"github.com/cascadeinfer/cascade/wasm/guest/settings"
)

type plugin struct{ policy.Paper }

func (p *plugin) Configure(config []byte) error {
	return settings.Read(config,
		settings.Field{Name: "smoothing", Set: func(v int64) { p.Smoothing = int(v) }, High: 1000},
		settings.Field{Name: "freeze", Set: func(v int64) { p.Freeze = int(v) }, High: 1 << 20})
}

func init() {
	p := &plugin{}
	configure.Register(p)
	refine.Register(p)
}

func main() {}
