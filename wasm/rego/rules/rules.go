// Package rules has example rules for package rego. They are complete: a site can use
// them unchanged or start from them. Their limits are data, with defaults in the rules,
// so that most sites only change numbers.
package rules

import _ "embed"

//go:embed plan.rego
var plan string

//go:embed slot.rego
var slot string

// Files returns the rules' texts by file name.
func Files() map[string]string {
	return map[string]string{"plan.rego": plan, "slot.rego": slot}
}
