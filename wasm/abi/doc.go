// Package abi is cascade-policy/1: what a policy in WebAssembly and its host say
// to each other, byte by byte. It holds the layout, and encodes and decodes the
// words of package policies on both sides; it runs nothing, and it does not
// judge a decision beyond what the words themselves promise. The invariant:
// whatever the bytes, nothing outside the frame is read or written, and nothing
// panics.
//
// # Module
//
// A module is core WebAssembly 2.0 with one memory and without vectors (SIMD), which no
// compiler makes unless it is told to, and of which a host would have to count and check
// two hundred instructions more. It exports its memory as "memory" and
//
//	cs_arena_v1(min i32) -> i64             required, and the sign of this ABI
//	cs_configure_v1(len i32) -> i64         optional
//	cs_rest_v1(reserved i32) -> i64         optional
//	cs_partition_v1(len i32) -> i64         one or more of these
//	cs_refine_v1, cs_bid_quote_v1, cs_bid_select_v1,
//	cs_outlier_v1, cs_place_v1, cs_guard_v1  (same type)
//
// and, if it needs it, _initialize, which is called once before all others. A
// module that exports a kind's function decides that kind. It may import, from
// module "cascade_v1", nothing but
//
//	log(level i32, ptr i32, len i32)        UTF-8; the host bounds rate and length
//	fail(code i32, ptr i32, len i32)        says why the status will be Failed
//
// and what its language's runtime needs of WASI, of which the host answers a
// few functions with stubs: time, randomness and state come in the frame, so
// that a call is a pure function of it. Any instance may serve any call.
//
// cs_arena_v1 returns address<<32 | size of a region of its memory, of at least
// min bytes and aligned to 8, that is the host's to write frames to until the
// instance is dropped; 0 means that it cannot. Guests keep it static, so that no
// call allocates. The host asks once per instance, and again when a frame does
// not fit. It writes a frame at the beginning, calls the kind's function with the
// frame's length, and reads the output there; since a guest's memory may move
// whenever it runs, the host looks the memory up anew for each.
//
// cs_rest_v1 is for what a guest puts off while it decides, such as collecting
// garbage: the host calls it between calls when it has the time, with fuel of its
// own, or never. The argument is 0, the result ignored, and no decision may depend
// on it.
//
// The result is status<<32 | value:
//
//	0 OK           decided; what value is depends on the kind
//	1 None         decided for nothing: no bid, none taken, own replica, no
//	               partition, plan denied
//	2 Unsupported  this guest does not know the kind or a flag
//	3 BadFrame     the frame is malformed to this guest
//	4 Short        the room for output is too small; value is what is needed
//	5 Failed       the guest gave up on this call; fail may have said why
//
// For 2 to 5 the host answers by its own policy, and the instance lives on: a guest
// that says so must be able to take the next call. After any other status, a trap,
// or an output that breaks a rule below it answers so, too, and drops the instance,
// whose memory may then be in any state.
//
// # Frame
//
// All numbers are little-endian, floats are IEEE 754 doubles. Offsets count from
// the beginning of the frame unless it says otherwise, and are multiples of 8.
//
//	 0 u32 magic      "CSP1"
//	 4 u16 hdr_len    of this header: 88 or more
//	 6 u16 kind
//	 8 u32 flags      0; a guest refuses bits it does not know (Unsupported)
//	12 u32 reserved   0
//	16 u32 arg_off    the kind's arguments
//	20 u32 arg_len
//	24 u32 rec_off    records, all of one size
//	28 u32 rec_count
//	32 u32 rec_stride from one record to the next
//	36 u32 aux_off    what arguments and records point into: "off, len" pairs
//	40 u32 aux_len    below count from here
//	44 u32 state_off  the policy's state, at most 4096 bytes, kept by the host
//	48 u32 state_len  written back by a guest that changes it
//	52 u32 state_cap  0 where the host keeps none
//	56 u32 out_off    room for the output
//	60 u32 out_cap
//	64 u64 call       names the call in logs and recordings
//	72 i64 now        microseconds, a clock that does not go back
//	80 u64 seed       all the randomness there is
//
// State is kept from call to call for partition (of one model), refine (of one
// replica's boundary) and guard (of one model): a call finds what the module left at
// the last one that was answered, whichever instance or generation of the module that
// was; another module begins with none, as does every module when the host starts.
// A state_len beyond state_cap keeps what was. The other kinds' calls run at once, in
// no order: they get no room.
//
// Kinds are partition 1, refine 2, bid-quote 3, bid-select 4, outlier 5, place 6,
// guard 7; 0 is configure. For each, the arguments, the record, the output and
// the meaning of the value stand above its functions in this package's files of
// the same name, with the rules that the host checks. "text" is a pair of u32,
// offset and length, of bytes in aux.
//
// # Evolution
//
// Within version 1, fields are only ever added at the end of the header, of
// arguments, of records and of outputs, of multiples of 8 bytes. Who reads goes
// by hdr_len, arg_len and rec_stride, skips what it does not know, and takes a
// field that the writer did not know for 0; below the sizes of 1.0 a frame is
// malformed. New kinds get new numbers and exports. A flag changes the meaning of
// what is there. Anything else is a new version: new magic, new export names.
//
// testdata has golden vectors for other languages: NAME.hex is a frame as the
// host writes it; NAME.json lists every field with its offset, and the result
// and output bytes of an answer.
//
// # History
//
//	2026-11-21  1.0  first version
//	2026-11-21  1.1  cs_rest_v1
//	2026-11-21  1.2  says for whom state is kept
//	2026-11-21  1.3  says that vectors are refused, as they were
package abi
