// Package rego evaluates a site's own rules, in OPA's language Rego, for plans and for
// the rollout of policies. Only the control plane links it, because OPA is larger than
// the rest of a daemon.
//
// The rules have no access to network, clock or randomness: built-in functions whose
// result does not depend on their arguments alone are undefined, and the time is
// input.now. Equal input and data give equal verdicts, so that a verdict can be
// replayed.
//
// # Rules
//
// Two packages are evaluated. Each has a set "deny" and optionally a set "warn" of
// objects {"code": number, "stage": number, "detail": string}; stage and detail may be
// missing:
//
//	data.cascade.plan   a plan that replaces another
//	data.cascade.slot   a policy that advances in a slot
//
// Their inputs are those of regodocument.Writer and Rollout. The limits of the rules are
// data (Config.Data) under data.limits. Package rules has complete examples that can be
// used unchanged.
//
// The invariant: a plan or rollout that cannot be judged is denied. A missing package, a
// result of another type, a failed evaluation and an exceeded deadline are errors, which
// callers treat as denials.
package rego
