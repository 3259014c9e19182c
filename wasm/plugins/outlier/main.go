// Command outlier is the module of policies/outlier. Its settings are "percent" and
// "least", see outlier.Detector.
package main

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
	policy "github.com/cascadeinfer/cascade/policies/outlier"
	"github.com/cascadeinfer/cascade/wasm/guest/configure"
	"github.com/cascadeinfer/cascade/wasm/guest/outlier"
	"github.com/cascadeinfer/cascade/wasm/guest/settings"
)

type plugin struct{ policy.Detector }

func (p *plugin) Configure(config []byte) error {
	return settings.Read(config,
		settings.Field{Name: "percent", Set: func(v int64) { p.Percent = int(v) }, High: 1 << 20},
		settings.Field{Name: "least", Set: func(v int64) { p.MinExcess = policies.Tokens(v) }, High: math.MaxInt64})
}

func init() {
	p := &plugin{}
	configure.Register(p)
	outlier.Register(p)
}

func main() {}
