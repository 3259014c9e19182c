// Package rego asks a site's own rules, in OPA's language, about plans and about
// the roll-out of policies. Only the control plane links it: OPA is larger than
// all the rest of a daemon.
//
// The rules are evaluated here, without network, clock or randomness: built-in
// functions whose result is not a function of their arguments are unknown to
// them, and the time comes as input.now. Equal input and data give equal
// verdicts, so that a verdict can be replayed.
//
// # Rules
//
// Two packages are asked, each for a set "deny" and, if there is one, a set
// "warn", of objects {"code": number, "stage": number, "detail": string}; stage
// and detail may be missing:
//
//	data.cascade.plan   a plan that is to replace another
//	data.cascade.slot   a policy that is to go further in a slot
//
// Their inputs are those of document.Writer and Rollout. What they compare with is data
// (Config.Data) under data.limits. Package rules has examples, which are
// complete and may be used as they are.
//
// The invariant: whoever cannot be judged is denied. A missing package, a result
// of another shape, an error and a deadline that passes are errors, and callers
// take an error for a denial.
package rego
