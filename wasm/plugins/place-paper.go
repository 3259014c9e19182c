//go:build ignore

// Command place-paper is the module of place.Policy. Its settings are "queue" and "prefix", see
// place.Policy.
package main

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
	policy "github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/wasm/guest/configure"
	"github.com/cascadeinfer/cascade/wasm/guest/place"
)

type plugin struct{ policy.Policy }

func (p *plugin) Configure(config []byte) error {
	return configure.ReadSettings(config,
		configure.Field{Name: "queue", Set: func(v int64) { p.Queue = policies.Tokens(v) }, High: math.MaxInt64},
		configure.Field{Name: "prefix", Set: func(v int64) { p.Prefix = policies.Tokens(v) }, High: math.MaxInt64})
}

func init() {
	p := &plugin{}
	configure.Register(p)
	place.Register(p)
}

func main() {}
