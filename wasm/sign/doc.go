// Package sign signs policy modules and verifies their signatures. A signature file
// beside the module has a statement about it: which kinds it may decide, within which
// limits, with which configuration. At least k of n ed25519 keys must sign it.
//
// Sign adds a signature to a File; Verify checks a file against a module, its
// configuration and a Ring of trusted keys; Mark prevents replays of older statements.
// The package loads no modules, stores no keys, and reads neither a clock nor files.
// The signature covers the module as its author built it, before the host instruments
// it: metering changes with the host's version, the signature does not.
//
// # File
//
// NAME.wasm.sig is JSON of at most MaxFile bytes, without unknown fields:
//
//	{"format": "cascade-policy-signature/3",
//	 "statement": {
//	   "fleet": "example.org",
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
// "fleet" is the name of the only fleet that admits the module (Ring.Fleet), so that a
// statement for a test fleet is worth nothing in another one that trusts the same keys.
// "configuration" is the digest of the module's configuration; it is omitted for a
// module without one. "golden" in the statement is the digest of the file's own
// "golden": the expected answers, as a call log compressed with DEFLATE, which every
// host checks the module against. Both are omitted when there are no expectations.
//
// The signatures are over the canonical text of the statement, which the reader
// generates from the fields (Statement.Canonical), and not over these bytes. So spaces,
// order and repetitions in the JSON do not matter, and a field that the reader does not
// know cannot pass for signed.
//
// # Expiry
//
// "not_after" is the last second at which a module may be admitted or promoted: after
// it, control planes refuse the statement, hosts start no trial of the module, and a
// module on trial is rejected. Expiry does not remove an active module. A stable module
// keeps running, also on restarted and new hosts: a date must not change the decisions
// of a fleet, nor make hosts that started before it differ from those that started
// after. The same holds for the previous module after a rollback. Hosts warn of an
// expiry in their status and log from seven days before. To remove a module, roll it
// back.
//
// # Invariants
//
//  1. At least Ring.Threshold different keys of the ring have signed every field of a
//     Statement that Verify returns; it applies to exactly the given module,
//     configuration and fleet, and has not expired at the given time.
//  2. Two different valid statements have different canonical texts.
//  3. A slot's Mark never decreases: an older statement is refused, however many valid
//     signatures it has. To return to an older module, sign a new statement about it.
//
// # History
//
//	2026-11-21  cascade-policy-signature/1
//	2026-11-21  cascade-policy-signature/2: configuration, golden
//	2026-11-22  cascade-policy-signature/3: fleet. Files of /1, which permit any
//	            configuration, and of /2 are refused.
package sign
