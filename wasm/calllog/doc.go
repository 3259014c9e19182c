// Package calllog reads and writes call logs: files of calls to policies, with their
// frames (wasm/abi), the answers, and the fuel that these took. Hosts write their
// recorded calls to one; authors keep one with the calls that a policy is tested on;
// and the one beside a module, NAME.wasm.golden, has the answers that are expected of
// the module.
//
// The package has the format and comparisons. The caller decides what a difference
// means.
//
// # File
//
// A call log has lines of JSON. The first names the format and the version of the fuel
// counts (host.Version); each other line is a call:
//
//	{"format": "cascade-policy-frames/1", "fuel": "cascade-meter/3+host/1"}
//	{"kind": "bid-select", "frame": "…base64…", "result": "0x0000000000000001",
//	 "output": "…base64…", "module": "…64 hex digits…", "fuel": 41}
//
// "cause" replaces result and output when the call failed; all three are left out when
// there is no answer yet.
//
// # Expectations
//
// A golden file has an answer to every call. A new, configured instance answers the
// calls of a kind in their order (Check), so that a module gives the same answers for
// the same fuel on every host with the same version of fuel counts. On other hosts only
// the answers are compared.
package calllog
