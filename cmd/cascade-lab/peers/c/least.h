/* bidask.LeastLoad: the least load, then the earliest start, then the first. */
static int better(int64_t load, int64_t start, int64_t least, int64_t first) {
  return load < least || (load == least && start < first);
}
