// Package abi defines cascade-policy/1, the binary interface between a policy in
// WebAssembly and its host. It holds the layout of the frames, and encodes and
// decodes the types of package policies on both sides: EncodeXCall and
// DecodeXResult are the host's, DecodeXCall and EncodeXResult the guest's. It runs
// nothing, and checks a decision only against the rules of its kind.
//
// Invariant: whatever bytes a frame holds, no function reads or writes outside the
// frame, and none panics.
//
// # Module
//
// A module is core WebAssembly 2.0 with one memory. Vector instructions (SIMD) are
// refused: compilers emit none by default, and a host would have to meter two hundred
// more instructions. The module exports its memory as "memory" and
//
//	cs_arena_v1(min i32) -> i64             required; identifies this ABI
//	cs_configure_v1(len i32) -> i64         optional
//	cs_run_deferred_v1(reserved i32) -> i64 optional
//	cs_partition_v1(len i32) -> i64         one or more of these
//	cs_refine_v1, cs_bid_quote_v1, cs_bid_select_v1,
//	cs_outlier_v1, cs_place_v1, cs_guard_v1  (same type)
//
// and optionally _initialize, which the host calls once before all others. A
// module that exports a kind's function decides that kind. From module "cascade_v1"
// it may import only
//
//	log(level i32, ptr i32, len i32)        UTF-8; level 0 debug, 1 info, 2 warning, 3 error;
//	                                        the host bounds rate and length
//	fail(code i32, ptr i32, len i32)        gives the reason for a status Failed
//
// and from WASI what its language's runtime needs; the host implements a few of
// these functions as stubs. Time, randomness and state come in the frame, so that a
// call is a pure function of its frame, and any instance may serve any call.
//
// cs_arena_v1 returns address<<32 | size of a region in the module's memory, at
// least min bytes long and aligned to 8, which the host may write frames to until it
// drops the instance; 0 means that the module has no such region. Guests keep the
// region static, so that no call allocates. The host calls the function once per
// instance, and again when a frame does not fit. It writes a frame at the beginning
// of the region, calls the kind's function with the frame's length, and reads the
// output from the frame. A guest's memory may move whenever the guest runs, so the
// host looks its address up again for each access.
//
// cs_run_deferred_v1 does work that a guest defers while it decides, such as garbage
// collection. The host calls it between calls when it has time, with a fuel limit of
// its own, or never. The argument is 0, the result is ignored, and no decision may
// depend on it.
//
// The result is status<<32 | value:
//
//	0 OK           decided; the meaning of value depends on the kind
//	1 None         decided for none: no bid, no winner, own replica, no
//	               partition, plan denied
//	2 Unsupported  this guest does not know the kind or a flag, or needs fields
//	               that this host, which is older, does not send
//	3 BadFrame     this guest cannot parse the frame
//	4 Short        the space for output is too small; value is the size needed
//	5 Failed       the guest gave up on this call; fail may have given the reason
//
// After 2 to 5 the host uses its native policy and keeps the instance: a guest that
// returns one of these must be able to serve the next call. After any other status, a
// trap, or an output that breaks a rule below, the host also uses its native policy,
// and drops the instance, whose memory may be in any state.
//
// # Frame
//
// All numbers are little-endian, floats are IEEE 754 doubles. Offsets count from
// the beginning of the frame unless it says otherwise, and are multiples of 8.
//
//	 0 u32 magic      "CSP1"
//	 4 u16 hdr_len    of this header: 88 or more
//	 6 u16 kind
//	 8 u32 flags      0; a guest refuses unknown bits (Unsupported)
//	12 u32 reserved   0
//	16 u32 arg_off    the kind's arguments
//	20 u32 arg_len
//	24 u32 rec_off    records, all of one size
//	28 u32 rec_count
//	32 u32 rec_stride from one record to the next
//	36 u32 aux_off    bytes that arguments and records point into: "off, len"
//	40 u32 aux_len    pairs below count from here
//	44 u32 state_off  the policy's state, at most 4096 bytes, kept by the host
//	48 u32 state_len  a guest that changes the state writes the new length here
//	52 u32 state_cap  0 where the host keeps no state
//	56 u32 out_off    space for the output
//	60 u32 out_cap
//	64 u64 call       identifies the call in logs and recordings
//	72 i64 now        microseconds, monotonic
//	80 u64 seed       the only source of randomness
//
// The host keeps state from call to call for partition (per model), refine (per
// replica's boundary) and guard (per model): a call sees the state that the last
// answered call left, whichever instance or generation of the module answered it. A
// different module begins without state, as does every module when the host starts. A
// state_len beyond state_cap leaves the state unchanged. Calls of the other kinds run
// concurrently and in no order; they have no state.
//
// Kinds are partition 1, refine 2, bid-quote 3, bid-select 4, outlier 5, place 6,
// guard 7; 0 is configure. The file of each kind in this package documents its
// arguments, record, output and value, and the rules that the host checks. "text" is
// a pair of u32, offset and length, of bytes in aux.
//
// # Evolution
//
// Within version 1, fields are only added, at the end of the header, of arguments,
// of records and of outputs, in multiples of 8 bytes. A reader uses hdr_len, arg_len
// and rec_stride, skips fields that it does not know, and takes fields that the writer
// did not know as 0, or refuses the frame (Unsupported) if it cannot decide without them:
// a host refuses a module that does so when it loads it. A frame with smaller areas than
// those of 1.0 is malformed. New
// kinds get new numbers and exports. A flag changes the meaning of existing fields.
// Any other change is a new version, with a new magic and new export names.
//
// testdata has golden vectors for other languages: NAME.hex is a frame as the host
// writes it; NAME.json lists every field with its offset, and the result and output
// bytes of one answer.
//
// # History
//
//	2026-11-21  1.0  first version
//	2026-11-21  1.1  adds cs_run_deferred_v1 (first called cs_rest_v1)
//	2026-11-21  1.2  documents which kinds have state
//	2026-11-21  1.3  documents that vector instructions are refused
//	2026-11-22  1.4  partition gets the QoE model, beside the iteration model; refine gets it in place of
//	                 the iteration model, with which guests computed the same sums, and loses kappa
//	2026-11-23  1.5  place gets the number of requests that run at each replica
//	2026-11-30  1.6  place gets the price of the request at each replica
package abi
