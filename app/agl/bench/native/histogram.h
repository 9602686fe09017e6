// Counts of nanoseconds in buckets that are at most 1/256 of their value wide, so that the middle of
// a bucket is within 0.2 % of everything in it.
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

enum { HALF_BITS = 8, HALF = 1 << HALF_BITS, BUCKETS = (64 - HALF_BITS) * HALF + HALF };

struct histogram {
  uint64_t count, largest, counts[BUCKETS];
};

static int bucket_of(uint64_t value) {
  if (value < 2 * HALF) return (int)value;
  int shift = 63 - __builtin_clzll(value) - HALF_BITS;
  return (shift << HALF_BITS) + (int)(value >> shift);
}

static void bucket_bounds(int bucket, uint64_t *low, uint64_t *width) {
  int shift = bucket < 2 * HALF ? 0 : bucket / HALF - 1;
  *low = (uint64_t)(bucket - (shift << HALF_BITS)) << shift;
  *width = (uint64_t)1 << shift;
}

static void histogram_add(struct histogram *h, int64_t nanoseconds) {
  uint64_t value = nanoseconds < 0 ? 0 : (uint64_t)nanoseconds;
  h->counts[bucket_of(value)]++;
  h->count++;
  if (value > h->largest) h->largest = value;
}

// {"count":N,"largest":NS,"buckets":[[LOW,WIDTH,COUNT],...]}, without the empty ones.
static void histogram_print(const struct histogram *h) {
  uint64_t low, width;
  const char *comma = "";
  printf("{\"count\":%" PRIu64 ",\"largest\":%" PRIu64 ",\"buckets\":[", h->count, h->largest);
  for (int i = 0; i < BUCKETS; i++) {
    if (!h->counts[i]) continue;
    bucket_bounds(i, &low, &width);
    printf("%s[%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]", comma, low, width, h->counts[i]);
    comma = ",";
  }
  printf("]}");
}
