// Package policy makes a WebAssembly module a policy: a Policy implements the
// interfaces of package policies by calls of an instance of the module, and when such
// a call fails, the native policy answers it. A NativeRecorder is native policies
// whose calls are recorded. What both know of the seven kinds is one table, kinds.
//
// A Policy runs one module. Packages wasm/promotion and wasm/slothost choose modules
// and switch between them, and judge whether answers are good.
//
// # Invariants
//
//  1. Every call is answered once, by the module or by the native policy. A fault
//     costs the caller only its time, which the kind's limits bound.
//  2. No call waits until an instance is made. It waits for a busy instance only when
//     all are busy.
//  3. An instance with deferred work does it before it has answered another 1,000
//     calls; no caller waits for that unless all instances do deferred work.
//  4. A call for a partition, a boundary or a plan gets the state that the last
//     answered call with the same Memory left.
//  5. A call that timed out while descheduled counts as Starved, and not as a fault.
//  6. After Failures faults within Window the breaker opens: from then on the native
//     policy answers everything. It does not close again.
//
// A Policy is safe for concurrent use. Calls for bids, outliers and places take
// no lock, and allocate only when they fail.
package policy
