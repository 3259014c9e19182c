/* least.h for Extism; input and output as in ../plugin. */
#include <stdint.h>

#include "least.h"

#define FROM_EXTISM(name) __attribute__((import_module("extism:host/env"), import_name(name)))

FROM_EXTISM("input_length") uint64_t input_length(void);
FROM_EXTISM("input_load_u64") uint64_t input_load_u64(uint64_t at);
FROM_EXTISM("alloc") uint64_t extism_alloc(uint64_t size);
FROM_EXTISM("store_u64") void store_u64(uint64_t at, uint64_t value);
FROM_EXTISM("output_set") void output_set(uint64_t at, uint64_t size);

__attribute__((export_name("choose"))) int32_t choose(void) {
  uint64_t n = input_length();
  int64_t best = -1, least = 0, first = 0;
  for (uint64_t at = 0; at + 16 <= n; at += 16) {
    int64_t load = (int64_t)input_load_u64(at), start = (int64_t)input_load_u64(at + 8);
    if (best < 0 || better(load, start, least, first)) {
      best = (int64_t)(at / 16);
      least = load;
      first = start;
    }
  }
  uint64_t out = extism_alloc(8);
  store_u64(out, (uint64_t)best);
  output_set(out, 8);
  return 0;
}
