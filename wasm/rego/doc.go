// Package rego runs a site's own rules, in OPA's language Rego, for plans and for the
// rollout of policies. OPA's compiler makes them a WebAssembly module, which the host of
// all modules runs within the limits of a guard: there is one evaluator, for a site's rules
// and for guards that authors push. Only the control plane and the tools link this package,
// because OPA is larger than the rest of a daemon.
//
// The rules have no access to network, clock or randomness: built-in functions whose
// result does not depend on their arguments alone are undefined, and the time is
// input.now. Equal input and data give equal verdicts, so that a verdict can be
// replayed. Functions that OPA's modules leave to their host, such as sprintf, are refused;
// see package host/opa.
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
// Their inputs are those of opa.Writer and Rollout. The limits of the rules are data
// (Config.Data) under data.limits. ExampleRules are complete and can be used unchanged.
//
// The invariant: a plan or rollout that cannot be judged is denied. A missing package, a
// result of another type, a trap and an evaluation without fuel are errors, which callers
// treat as denials. An error in a built-in function, such as a division by zero, makes its
// expression undefined.
package rego
