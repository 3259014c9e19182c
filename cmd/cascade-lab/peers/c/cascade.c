/* least.h for our host. */
#include "cascade_policy.h"
#include "least.h"

CS_ARENA(16 * 1024)

CS_BID_SELECT int64_t choose(uint32_t len) {
  cs_header *h;
  int status = cs_open(len, CS_KIND_BID_SELECT, 0, sizeof(cs_bid_select_bid), &h);
  if (status != CS_OK) return cs_result(status, 0);
  if (h->rec_count == 0) return cs_result(CS_NONE, 0);
  const cs_bid_select_bid *first = cs_record(h, 0);
  uint32_t best = 0;
  for (uint32_t i = 1; i < h->rec_count; i++) {
    const cs_bid_select_bid *b = cs_record(h, i);
    if (better(b->load, b->start, first->load, first->start)) {
      first = b;
      best = i;
    }
  }
  return cs_result(CS_OK, best);
}
