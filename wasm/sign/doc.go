// Package sign says which modules may decide: a statement about a module,
// signed by k of n ed25519 keys, in a file beside it.
//
// It neither loads modules nor keeps keys; it reads no clock and no files. What
// is signed is the original module as its author built it, not what the host
// makes of it: metering changes with the host's version, the signature does not.
//
// # File
//
// NAME.wasm.sig is JSON of at most MaxFile bytes, without unknown fields:
//
//	{"format": "cascade-policy-signature/2",
//	 "statement": {
//	   "sha256": "…64 hex digits…",
//	   "abi": "cascade-policy/1",
//	   "name": "my-refiner",
//	   "version": "1.2.0",
//	   "kinds": [{"kind": "refine", "fuel": 5000000, "micros": 20000, "pages": 128}],
//	   "not_after": 1790000000,
//	   "generation": 1763721600,
//	   "configuration": "…64 hex digits…",
//	   "golden": "…64 hex digits…"},
//	 "signatures": [{"key": "…16 hex digits…", "signature": "…base64…"}],
//	 "golden": "…base64…"}
//
// "configuration" is the digest of what the module is to be configured with; left
// out, it is to have none. "golden" in the statement is the digest of what the
// module is expected to answer, which the file carries itself, by DEFLATE, because
// every host tries the module on it; both are left out where there is nothing.
//
// The signatures are not of these bytes but of the statement's canonical text,
// which the reader writes anew from the fields (Statement.Canonical): how the
// JSON is spaced, ordered or repeated cannot matter, and no field that the reader
// does not know is taken for signed.
//
// # End
//
// "not_after" is the last second at which a module may come further: after it no
// control plane takes the statement, no host begins to try the module, and one that
// is on trial then is rejected. It does not take away what decides. A module that
// the fleet runs, which its control plane calls proven, runs on, and begins again on
// hosts that restart and on new ones: a date must not change what a fleet decides,
// nor divide it into hosts that started before it and after. So does the module
// before it, when operators go back to that. Hosts report an end in their status and
// their log from seven days before. To remove a module, roll it back.
//
// # Invariants
//
//  1. A Statement that Verify returns was signed, every field of it, by at least
//     Ring.Threshold different keys of the ring, holds for exactly the module and
//     the configuration given, and has not expired at the time given.
//  2. Two different valid statements have different canonical texts.
//  3. A slot's Mark never goes back: replaying an older statement, with however
//     many good signatures, is refused. Going back to an older module is a new
//     statement about it.
//
// # History
//
//	2026-11-21  cascade-policy-signature/1
//	2026-11-21  cascade-policy-signature/2: configuration, golden. Files of /1 are
//	            read as before; their modules may be configured with anything.
package sign
