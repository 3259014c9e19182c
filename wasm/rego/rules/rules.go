// Package rules has example rules for package rego: complete, and meant to be
// used as they are or as a beginning. Their limits are data, with defaults in the
// rules, so that most sites edit numbers only.
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
