//go:build ignore

// Command partition-exact is the module of policies/partition.Exact with its default slack, priced by flow.
package main

import (
	policy "github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/wasm/guest/partition"
)

func init() { partition.Register(policy.Exact{Slack: policy.DefaultSlack}) }

func main() {}
