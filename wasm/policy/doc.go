// Package policy makes a module in WebAssembly a policy like any other: a Policy
// implements the interfaces of package policies, and asks an instance of the
// module; where that fails, the native policy beside it answers the same call.
//
// It runs one module. It does not choose modules, nor move traffic from one to
// another: slots do. Whether an answer that keeps its kind's rules is any good
// it does not know either.
//
// # Invariants
//
//  1. Every call is answered, once: by the module, or by the native policy. A
//     caller sees nothing of a fault but the time that it took, which the kind's
//     limits bound.
//  2. No call waits for an instance to be made. It waits for one that is in use
//     only when all are.
//  3. Instances that rest between calls (host.Instance.Rest) do so before they have
//     answered another 1,000; no caller waits for it unless all instances do.
//  4. A call for a partition, a boundary or a plan finds the state that the last one
//     with the same Memory left that the module answered.
//  5. A call that the machine did not run in time counts as Starved, and as no fault.
//  6. After Failures faults within Window the breaker opens: the native policy
//     answers everything from then on. It does not close again.
//
// A Policy is safe for concurrent use. Calls for bids, outliers and places take
// no lock and do not allocate unless they fail.
package policy
