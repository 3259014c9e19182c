//go:build ignore

// Command place-cheapest is the module of place.Cheapest. It has no settings.
package main

import (
	policy "github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/wasm/guest/place"
)

func init() { place.Register(policy.Cheapest{}) }

func main() {}
