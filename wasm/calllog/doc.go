// Package calllog is a file of calls to policies: frames (wasm/abi), and the answers
// that somebody gave, with the fuel that they took. Hosts write what they recorded
// to one; authors keep one with the calls that a policy is to be tried on; and one
// beside a module, NAME.wasm.golden, has what that is expected to answer.
//
// It is a format and comparisons, no more: who answers, and what becomes of a
// difference, is others' to say.
//
// # File
//
// Lines of JSON, the first of which names the format, and what counts of fuel mean
// (host.Version); each other one is a frame:
//
//	{"format": "cascade-policy-frames/1", "fuel": "cascade-meter/3+host/1"}
//	{"kind": "bid-select", "frame": "…base64…", "result": "0x0000000000000001",
//	 "output": "…base64…", "module": "…64 hex digits…", "fuel": 41}
//
// "cause" stands in the place of result and output where there was no answer; all
// three are left out where nobody has been asked.
//
// # Expectations
//
// A golden file has an answer to every frame. The frames of a kind are answered in
// their order by an instance that is new and configured (Check): then a module has
// no choice but to give the same answers for the same fuel on every host whose
// fuel means the same. On others only the answers are compared.
package calllog
