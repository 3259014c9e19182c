//go:build ignore

// Command outlier is the module of bidask.Detector. Its settings are "percent" and
// "least", see bidask.Detector.
package main

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
	policy "github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/wasm/guest/configure"
	"github.com/cascadeinfer/cascade/wasm/guest/outlier"
)

type plugin struct{ policy.Detector }

func (p *plugin) Configure(config []byte) error {
	return configure.ReadSettings(config,
		configure.Field{Name: "percent", Set: func(v int64) { p.Percent = int(v) }, High: 1 << 20},
		configure.Field{Name: "least", Set: func(v int64) { p.MinExcess = policies.Tokens(v) }, High: math.MaxInt64})
}

func init() {
	p := &plugin{}
	configure.Register(p)
	outlier.Register(p)
}

func main() {}
