// Plugin partition-paper is the paper's planner, TwoPhase on the snapshot, of policies/partition as a module.
package main

import (
	policy "github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/wasm/guest/partition"
)

func init() { partition.Register(policy.TwoPhase{Objective: policy.Snapshot}) }

func main() {}
