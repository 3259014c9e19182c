//go:build ignore

// Command partition-two-phase is the module of policies/partition.TwoPhase, priced by flow.
package main

import (
	policy "github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/wasm/guest/partition"
)

func init() { partition.Register(policy.TwoPhase{}) }

func main() {}
