//go:build ignore

// Command partition-paper is the module of the paper's planner: policies/partition.TwoPhase
// on the snapshot.
package main

import (
	policy "github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/wasm/guest/partition"
)

func init() { partition.Register(policy.TwoPhase{Objective: policy.Snapshot}) }

func main() {}
