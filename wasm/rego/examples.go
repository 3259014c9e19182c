package rego

import _ "embed"

//go:embed rules/plan.rego
var planRules string

//go:embed rules/slot.rego
var slotRules string

// ExampleRules returns the texts of example rules by file name. They are complete: a site can use them unchanged or
// start from them. Their limits are data, with defaults in the rules, so that most sites only change numbers.
func ExampleRules() map[string]string {
	return map[string]string{"plan.rego": planRules, "slot.rego": slotRules}
}
