package main

// top is the header's beginning, for the protocol's name and its constants.
const top = `/* cascade_policy.h: policies in C for Cascade's sandbox, by %s.

   Generated (go generate ./wasm/guest/c): do not edit. The protocol is described
   in package wasm/abi; the structs below overlay its frames. They may grow at
   their ends: step through records with cs_record, never with an index.

     #include "cascade_policy.h"

     CS_ARENA(64 * 1024)

     CS_BID_SELECT int64_t select_bid(uint32_t len) {
       cs_header *h;
       int status = cs_open(len, CS_KIND_BID_SELECT, 0, sizeof(cs_bid_select_bid), &h);
       if (status != CS_OK) return cs_result(status, 0);
       if (h->rec_count == 0) return cs_result(CS_NONE, 0);
       ...
       return cs_result(CS_OK, winner);
     }

   A call is a pure function of its frame: the host runs any instance for any
   call. Build with -O2 -nostdlib -Wl,--no-entry for wasm32-freestanding; anything
   of WASI beyond what the protocol lists is refused. Needs C11. */

#ifndef CASCADE_POLICY_H
#define CASCADE_POLICY_H

#include <stddef.h>
#include <stdint.h>

#define CS_CHECK(what, text) _Static_assert(what, text)

#define CS_MAGIC 0x%xu
#define CS_HEADER_SIZE %d
#define CS_MAX_STATE %d
#define CS_MAX_DETAIL %d
#define CS_UNBOUNDED INT64_MAX /* the open end of a range of lengths */

/* A text: where it begins in aux, and its bytes. Read it with cs_bytes. */
typedef struct {
  uint32_t off;
  uint32_t len;
} cs_text;

`

// bottom is its end, for the names of the imports and the arena.
const bottom = `
#if defined(__wasm__)
#define CS_EXPORT(name) __attribute__((export_name(name)))
#define CS_IMPORT(name) __attribute__((import_module("%[1]s"), import_name(name)))
/* A line for the host's log, which it may cut or drop: 0 debug to 3 error. */
CS_IMPORT("%[2]s") void cs_log(uint32_t level, const char *text, uint32_t len);
/* Says why the status will be CS_FAILED, whose number is the code. */
CS_IMPORT("%[3]s") void cs_fail(uint32_t code, const char *text, uint32_t len);
#else
/* Elsewhere the same file compiles to functions that tests can call. */
#define CS_EXPORT(name)
#endif

/* The region that frames come in; CS_ARENA defines it, once per module. */
extern unsigned char cs_arena[];
extern const uint32_t cs_arena_size;

#define CS_ARENA(bytes)                                                        \
  CS_CHECK((bytes) %% 8 == 0, "an arena has whole words");                      \
  _Alignas(8) unsigned char cs_arena[bytes];                                   \
  const uint32_t cs_arena_size = (bytes);                                      \
  CS_EXPORT("%[4]s") int64_t cs_arena_region(uint32_t least);              \
  int64_t cs_arena_region(uint32_t least) {                                    \
    if (least > cs_arena_size) return 0;                                       \
    return (int64_t)((uint64_t)(uintptr_t)cs_arena << 32 | cs_arena_size);     \
  }

static inline int64_t cs_result(int status, uint32_t value) {
  return (int64_t)((uint64_t)(uint32_t)status << 32 | value);
}

static inline int cs_in(uint64_t off, uint64_t n, uint32_t len) {
  return off %% 8 == 0 && off + n <= len;
}

/* Checks the frame of len bytes and sets *h to its header: of that kind, with
   arguments and records of at least these sizes, and all areas inside. For a kind
   without records the size is 0. Returns CS_OK, or the status to answer with:
   CS_UNSUPPORTED also if the host is older than this file and sends less. A policy
   that does without the newer fields, such as those of the QoE model, gives the
   offset of the first one as the size: offsetof(cs_partition_args, qoe_d0). */
static inline int cs_open(uint32_t len, int kind, uint32_t args, uint32_t record, cs_header **h) {
  cs_header *f = (cs_header *)(void *)cs_arena;
  if (len > cs_arena_size || len < CS_HEADER_SIZE || f->magic != CS_MAGIC || f->hdr_len < CS_HEADER_SIZE || f->hdr_len > len)
    return CS_BAD_FRAME;
  if (f->kind != kind || f->flags != 0) return CS_UNSUPPORTED;
  if (!cs_in(f->arg_off, f->arg_len, len) || !cs_in(f->aux_off, f->aux_len, len) ||
      !cs_in(f->state_off, f->state_cap, len) || f->state_len > f->state_cap || !cs_in(f->out_off, f->out_cap, len))
    return CS_BAD_FRAME;
  if (record > 0 && f->rec_count > 0 && (f->rec_stride %% 8 != 0 || !cs_in(f->rec_off, (uint64_t)f->rec_count * f->rec_stride, len)))
    return CS_BAD_FRAME;
  if (f->arg_len < args || (record > 0 && f->rec_count > 0 && f->rec_stride < record)) return CS_UNSUPPORTED;
  *h = f;
  return CS_OK;
}

/* The arguments, record i, the state and the room for the output of a frame that
   cs_open took for good. */
static inline void *cs_args(cs_header *h) { return cs_arena + h->arg_off; }
static inline void *cs_record(cs_header *h, uint32_t i) { return cs_arena + h->rec_off + (size_t)i * h->rec_stride; }
static inline void *cs_state(cs_header *h) { return cs_arena + h->state_off; }

/* The room for the output, or NULL if it has less than n bytes: then the result is
   cs_result(CS_SHORT, n). */
static inline void *cs_output(cs_header *h, uint32_t n) {
  return h->out_cap < n ? NULL : cs_arena + h->out_off;
}

/* The bytes of a text, or NULL if they are not in aux. They end without a 0. */
static inline const char *cs_bytes(cs_header *h, cs_text t) {
  return (uint64_t)t.off + t.len > h->aux_len ? NULL : (const char *)cs_arena + h->aux_off + t.off;
}

/* Before the functions of the kinds that a module decides. */
`
