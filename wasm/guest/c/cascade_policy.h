/* cascade_policy.h: policies in C for Cascade's sandbox, by cascade-policy/1.

   Generated (make generate): do not edit. The protocol is described
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

#define CS_MAGIC 0x31505343u
#define CS_HEADER_SIZE 88
#define CS_MAX_STATE 4096
#define CS_MAX_DETAIL 256
#define CS_UNBOUNDED INT64_MAX /* the open end of a range of lengths */

/* A text: where it begins in aux, and its bytes. Read it with cs_bytes. */
typedef struct {
  uint32_t off;
  uint32_t len;
} cs_text;

enum {
  CS_KIND_CONFIGURE = 0,
  CS_KIND_PARTITION = 1,
  CS_KIND_REFINE = 2,
  CS_KIND_BID_QUOTE = 3,
  CS_KIND_BID_SELECT = 4,
  CS_KIND_OUTLIER = 5,
  CS_KIND_PLACE = 6,
  CS_KIND_GUARD = 7,
};

/* What a call returns: see cs_result. */
enum {
  CS_OK = 0, /* policy answered */
  CS_NONE = 1, /* policy decided for none */
  CS_UNSUPPORTED = 2, /* policy does not support this kind of call, or needs a newer host */
  CS_BAD_FRAME = 3, /* policy could not parse the frame */
  CS_SHORT = 4, /* policy needs more space for its output */
  CS_FAILED = 5, /* policy gave up */
};

typedef struct {
  uint32_t magic; /* 0 */
  uint16_t hdr_len; /* 4 */
  uint16_t kind; /* 6 */
  uint32_t flags; /* 8 */
  uint32_t reserved; /* 12 */
  uint32_t arg_off; /* 16 */
  uint32_t arg_len; /* 20 */
  uint32_t rec_off; /* 24 */
  uint32_t rec_count; /* 28 */
  uint32_t rec_stride; /* 32 */
  uint32_t aux_off; /* 36 */
  uint32_t aux_len; /* 40 */
  uint32_t state_off; /* 44 */
  uint32_t state_len; /* 48 */
  uint32_t state_cap; /* 52 */
  uint32_t out_off; /* 56 */
  uint32_t out_cap; /* 60 */
  uint64_t call; /* 64 */
  int64_t now; /* 72 */
  uint64_t seed; /* 80 */
} cs_header;
CS_CHECK(sizeof(cs_header) == 88, "header has holes");

typedef struct {
  int64_t kv; /* 0 */
  int64_t batch; /* 8 */
  double transfer_rate; /* 16 */
  int64_t replicas; /* 24 */
  double d0; /* 32 */
  double d1; /* 40 */
  double d2; /* 48 */
  double d3; /* 56 */
  double d4; /* 64 */
  double kappa; /* 72 */
  double transfer_base; /* 80 */
  double transfer_per_token; /* 88 */
  int64_t stages; /* 96 */
  double iteration; /* 104 */
  double pooling; /* 112 */
  double utilisation; /* 120 */
  uint64_t seen; /* 128 */
  uint64_t bits; /* 136 */
  double qoe_d0; /* 144 */
  double qoe_d1; /* 152 */
  double qoe_d2; /* 160 */
  double qoe_d3; /* 168 */
  double qoe_d4; /* 176 */
} cs_partition_args;
CS_CHECK(sizeof(cs_partition_args) == 184, "partition_args has holes");

typedef struct {
  int64_t edge; /* 0 */
  double arrivals; /* 8 */
  double tokens; /* 16 */
  double reads; /* 24 */
  double prefill; /* 32 */
  double prefill2; /* 40 */
  double weight; /* 48 */
  double crossings; /* 56 */
  double in_flight; /* 64 */
  double sum_input; /* 72 */
  double sum_input2; /* 80 */
  double sum_length; /* 88 */
} cs_partition_bucket;
CS_CHECK(sizeof(cs_partition_bucket) == 96, "partition_bucket has holes");

typedef struct {
  uint32_t hdr_len; /* 0 */
  uint32_t bits; /* 4 */
  uint32_t stages; /* 8 */
  uint32_t stride; /* 12 */
  double cost; /* 16 */
  double one_stage; /* 24 */
} cs_partition_output;
CS_CHECK(sizeof(cs_partition_output) == 32, "partition_output has holes");

typedef struct {
  int64_t end; /* 0 */
  int64_t replicas; /* 8 */
  double iteration; /* 16 */
} cs_partition_stage;
CS_CHECK(sizeof(cs_partition_stage) == 24, "partition_stage has holes");

typedef struct {
  int64_t boundary; /* 0 */
  int64_t low; /* 8 */
  int64_t high; /* 16 */
  int64_t peers; /* 24 */
  int64_t successors; /* 32 */
  double d0; /* 40 */
  double d1; /* 48 */
  double d2; /* 56 */
  double d3; /* 64 */
  double d4; /* 72 */
  double zero; /* 80 */
  int64_t local; /* 88 */
} cs_refine_args;
CS_CHECK(sizeof(cs_refine_args) == 96, "refine_args has holes");

typedef struct {
  int64_t input; /* 0 */
  int64_t length; /* 8 */
} cs_refine_sequence;
CS_CHECK(sizeof(cs_refine_sequence) == 16, "refine_sequence has holes");

typedef struct {
  int64_t proposal; /* 0 */
} cs_refine_output;
CS_CHECK(sizeof(cs_refine_output) == 8, "refine_output has holes");

typedef struct {
  int64_t capacity; /* 0 */
  int64_t held; /* 8 */
  int64_t promised; /* 16 */
  int64_t incoming; /* 24 */
  int64_t throughput; /* 32 */
  int64_t length; /* 40 */
  cs_text request; /* 48 */
  uint32_t cause; /* 56 */
  uint32_t bits; /* 60 */
} cs_bid_quote_args;
CS_CHECK(sizeof(cs_bid_quote_args) == 64, "bid_quote_args has holes");

typedef struct {
  int64_t load; /* 0 */
  int64_t start; /* 8 */
} cs_bid_quote_output;
CS_CHECK(sizeof(cs_bid_quote_output) == 16, "bid_quote_output has holes");

typedef struct {
  int64_t load; /* 0 */
  int64_t start; /* 8 */
  cs_text from; /* 16 */
} cs_bid_select_bid;
CS_CHECK(sizeof(cs_bid_select_bid) == 24, "bid_select_bid has holes");

typedef struct {
  int64_t own; /* 0 */
  int64_t mean; /* 8 */
} cs_outlier_args;
CS_CHECK(sizeof(cs_outlier_args) == 16, "outlier_args has holes");

typedef struct {
  int64_t excess; /* 0 */
} cs_outlier_output;
CS_CHECK(sizeof(cs_outlier_output) == 8, "outlier_output has holes");

typedef struct {
  cs_text request; /* 0 */
  cs_text model; /* 8 */
  int64_t input; /* 16 */
  int64_t cached; /* 24 */
  int64_t output; /* 32 */
  int64_t max_output; /* 40 */
  uint32_t features; /* 48 */
  uint32_t bits; /* 52 */
  int64_t hops; /* 56 */
} cs_place_args;
CS_CHECK(sizeof(cs_place_args) == 64, "place_args has holes");

typedef struct {
  int64_t low; /* 0 */
  int64_t high; /* 8 */
  int64_t waiting; /* 16 */
  int64_t load; /* 24 */
  int64_t prefix; /* 32 */
  cs_text replica; /* 40 */
  uint64_t bits; /* 48 */
  int64_t running; /* 56 */
  int64_t price; /* 64 */
} cs_place_site;
CS_CHECK(sizeof(cs_place_site) == 72, "place_site has holes");

typedef struct {
  cs_text model; /* 0 */
  uint64_t epoch_now; /* 8 */
  uint64_t epoch_next; /* 16 */
  uint32_t now; /* 24 */
  uint32_t replicas; /* 28 */
  uint32_t names; /* 32 */
  uint32_t zero; /* 36 */
} cs_guard_args;
CS_CHECK(sizeof(cs_guard_args) == 40, "guard_args has holes");

typedef struct {
  int64_t low; /* 0 */
  int64_t high; /* 8 */
  uint32_t first; /* 16 */
  uint32_t count; /* 20 */
} cs_guard_stage;
CS_CHECK(sizeof(cs_guard_stage) == 24, "guard_stage has holes");

typedef struct {
  uint32_t code; /* 0 */
  int32_t stage; /* 4 */
  uint32_t detail_len; /* 8 */
  uint32_t zero; /* 12 */
} cs_guard_output;
CS_CHECK(sizeof(cs_guard_output) == 16, "guard_output has holes");

#if defined(__wasm__)
#define CS_EXPORT(name) __attribute__((export_name(name)))
#define CS_IMPORT(name) __attribute__((import_module("cascade_v1"), import_name(name)))
/* A line for the host's log, which it may cut or drop: 0 debug to 3 error. */
CS_IMPORT("log") void cs_log(uint32_t level, const char *text, uint32_t len);
/* Says why the status will be CS_FAILED, whose number is the code. */
CS_IMPORT("fail") void cs_fail(uint32_t code, const char *text, uint32_t len);
#else
/* Elsewhere the same file compiles to functions that tests can call. */
#define CS_EXPORT(name)
#endif

/* The region that frames come in; CS_ARENA defines it, once per module. */
extern unsigned char cs_arena[];
extern const uint32_t cs_arena_size;

#define CS_ARENA(bytes)                                                        \
  CS_CHECK((bytes) % 8 == 0, "an arena has whole words");                      \
  _Alignas(8) unsigned char cs_arena[bytes];                                   \
  const uint32_t cs_arena_size = (bytes);                                      \
  CS_EXPORT("cs_arena_v1") int64_t cs_arena_region(uint32_t least);              \
  int64_t cs_arena_region(uint32_t least) {                                    \
    if (least > cs_arena_size) return 0;                                       \
    return (int64_t)((uint64_t)(uintptr_t)cs_arena << 32 | cs_arena_size);     \
  }

static inline int64_t cs_result(int status, uint32_t value) {
  return (int64_t)((uint64_t)(uint32_t)status << 32 | value);
}

static inline int cs_in(uint64_t off, uint64_t n, uint32_t len) {
  return off % 8 == 0 && off + n <= len;
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
  if (record > 0 && f->rec_count > 0 && (f->rec_stride % 8 != 0 || !cs_in(f->rec_off, (uint64_t)f->rec_count * f->rec_stride, len)))
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
#define CS_CONFIGURE CS_EXPORT("cs_configure_v1")
#define CS_PARTITION CS_EXPORT("cs_partition_v1")
#define CS_REFINE CS_EXPORT("cs_refine_v1")
#define CS_BID_QUOTE CS_EXPORT("cs_bid_quote_v1")
#define CS_BID_SELECT CS_EXPORT("cs_bid_select_v1")
#define CS_OUTLIER CS_EXPORT("cs_outlier_v1")
#define CS_PLACE CS_EXPORT("cs_place_v1")
#define CS_GUARD CS_EXPORT("cs_guard_v1")

#endif
