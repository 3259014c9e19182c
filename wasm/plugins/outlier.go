//go:build ignore

// Command outlier is the module of bidask.Detector. Its setting is "percent", see
// bidask.Detector.
package main

import (
	policy "github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/wasm/guest/configure"
	"github.com/cascadeinfer/cascade/wasm/guest/outlier"
)

type plugin struct{ policy.Detector }

func (p *plugin) Configure(config []byte) error {
	return configure.ReadSettings(config,
		configure.Field{Name: "percent", Set: func(v int64) { p.Percent = int(v) }, High: 1 << 20})
}

func init() {
	p := &plugin{}
	configure.Register(p)
	outlier.Register(p)
}

func main() {}
