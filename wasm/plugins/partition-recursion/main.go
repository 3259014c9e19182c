// Plugin partition-recursion is Recursion, priced by flow, of policies/partition as a module.
package main

import (
	policy "github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/wasm/guest/partition"
)

func init() { partition.Register(policy.Recursion{}) }

func main() {}
