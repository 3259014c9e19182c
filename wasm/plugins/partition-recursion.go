//go:build ignore

// Command partition-recursion is the module of policies/partition.Recursion, priced by flow.
package main

import (
	policy "github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/wasm/guest/partition"
)

func init() { partition.Register(policy.Recursion{}) }

func main() {}
