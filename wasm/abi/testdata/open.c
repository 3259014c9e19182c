/* Opens a frame, given in hexadecimal, as it is and in every way damaged by one
   byte or cut: see main_test.go. */
#include "cascade_policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CS_ARENA(4096)

static volatile unsigned char sink;

static void touch(const void *p, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) sink = ((const unsigned char *)p)[i];
}

/* A copy of the frame ends where the frame ends, so that reading on is seen. */
static int open_frame(const unsigned char *frame, uint32_t len, int kind, uint32_t args, uint32_t record) {
  memcpy(cs_arena, frame, len);
  memset(cs_arena + len, 0xff, cs_arena_size - len);
  cs_header *h;
  int status = cs_open(len, kind, args, record, &h);
  if (status != CS_OK) return status;
  const unsigned char *end = cs_arena + len;
  const unsigned char *a = cs_args(h);
  if (a + h->arg_len > end) abort();
  touch(a, h->arg_len);
  for (uint32_t i = 0; record > 0 && i < h->rec_count; i++) {
    const unsigned char *r = cs_record(h, i);
    if (r + record > end) abort();
    touch(r, record);
  }
  const unsigned char *s = cs_state(h), *o = cs_output(h, h->out_cap);
  if (s + h->state_cap > end || o + h->out_cap > end || cs_output(h, h->out_cap + 1) != NULL) abort();
  cs_text t = {0, h->aux_len};
  const char *b = cs_bytes(h, t);
  if (b == NULL || (const unsigned char *)b + t.len > end) abort();
  t.off = 1;
  if (cs_bytes(h, t) != NULL) abort();
  return CS_OK;
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  int kind = atoi(argv[1]);
  uint32_t args = (uint32_t)atoi(argv[2]), record = (uint32_t)atoi(argv[3]);
  static unsigned char frame[2048], damaged[2048];
  uint32_t len = 0;
  unsigned byte;
  while (len < sizeof frame && scanf("%2x", &byte) == 1) frame[len++] = (unsigned char)byte;
  if (open_frame(frame, len, kind, args, record) != CS_OK) {
    printf("the vector is not taken\n");
    return 1;
  }
  if (open_frame(frame, len, kind + 1, args, record) != CS_UNSUPPORTED) return 1;
  if (open_frame(frame, len, kind, args + 8, record) != CS_UNSUPPORTED) return 1;
  for (uint32_t n = 0; n < CS_HEADER_SIZE; n++)
    if (open_frame(frame, n, kind, args, record) != CS_BAD_FRAME) return 1;
  for (uint32_t n = CS_HEADER_SIZE; n < len; n++) open_frame(frame, n, kind, args, record);
  for (uint32_t i = 0; i < len; i++)
    for (unsigned v = 0; v < 256; v++) {
      memcpy(damaged, frame, len);
      damaged[i] = (unsigned char)v;
      open_frame(damaged, len, kind, args, record);
    }
  if (cs_result(CS_NONE, 7) != ((int64_t)1 << 32 | 7)) return 1;
  return 0;
}
