/* A bid policy in C: near.

   Least load alone sends a request to a receiver that must first take in many
   others. near looks at all bids whose load is at most a quarter above the least
   and takes the one whose transfer can start first; among equals the least load,
   then the first reply.

   Build it with the wheel of Zig, which brings clang (make zig), or any clang for
   wasm32:

     cascade policy test --build examples/bid-c/src -o examples/bid-c/near.wasm */

#include "cascade_policy.h"

CS_ARENA(16 * 1024)

CS_BID_SELECT int64_t select_bid(uint32_t len) {
  cs_header *h;
  int status = cs_open(len, CS_KIND_BID_SELECT, 0, sizeof(cs_bid_select_bid), &h);
  if (status != CS_OK) return cs_result(status, 0);
  if (h->rec_count == 0) return cs_result(CS_NONE, 0);

  int64_t least = INT64_MAX;
  for (uint32_t i = 0; i < h->rec_count; i++) {
    const cs_bid_select_bid *b = cs_record(h, i);
    if (b->load < least) least = b->load;
  }
  int64_t most = least <= INT64_MAX / 2 ? least + least / 4 : INT64_MAX;

  uint32_t best = h->rec_count;
  const cs_bid_select_bid *first = NULL;
  for (uint32_t i = 0; i < h->rec_count; i++) {
    const cs_bid_select_bid *b = cs_record(h, i);
    if (b->load > most) continue;
    if (first == NULL || b->start < first->start || (b->start == first->start && b->load < first->load)) {
      first = b;
      best = i;
    }
  }
  return cs_result(CS_OK, best);
}
