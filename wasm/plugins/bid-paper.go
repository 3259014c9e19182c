//go:build ignore

// Command bid-paper is the module of two policies in policies/bidask: Paper selects the
// winner of an ask, Backlog quotes a receiver's bid. Its settings are "quantum" and
// "throughput", see bidask.Backlog, and "keep", see bidask.Paper.
package main

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/wasm/guest/bidquote"
	"github.com/cascadeinfer/cascade/wasm/guest/bidselect"
	"github.com/cascadeinfer/cascade/wasm/guest/configure"
)

type plugin struct {
	bidask.Backlog
	bidask.Paper
}

func (p *plugin) Configure(config []byte) error {
	return configure.ReadSettings(config,
		configure.Field{Name: "quantum", Set: func(v int64) { p.Quantum = policies.Micros(v) }, High: math.MaxInt64},
		configure.Field{Name: "keep", Set: func(v int64) { p.Keep = int(v) }, High: 1 << 20},
		configure.Field{Name: "throughput", Set: func(v int64) { p.Throughput = policies.Tokens(v) }, High: math.MaxInt64})
}

func init() {
	p := &plugin{}
	configure.Register(p)
	bidquote.Register(p)
	bidselect.Register(p)
}

func main() {}
