// Barriers and the operations among the 32 lanes of a simdgroup.
#pragma once
#include "interface.h"
#include "msl_math.h"

// The place in the body that calls; always the last parameters.
#ifdef __clang__
#define TQ_COLUMN __builtin_COLUMN()
#else
#define TQ_COLUMN 0
#endif
#define TQ_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE(), int column = TQ_COLUMN
#define TQ_HERE \
  tq_site { file, line, column }

namespace metal {
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }

TQ_INLINE void threadgroup_barrier(mem_flags memory, TQ_SITE) { tq_threadgroup_barrier(int(memory), TQ_HERE); }
TQ_INLINE void simdgroup_barrier(mem_flags memory, TQ_SITE) { tq_simdgroup_barrier(int(memory), TQ_HERE); }

namespace lanes {
template <class T>
TQ_INLINE tq_exchange meet(T value, const char* operation, TQ_SITE) {
  static_assert(sizeof(T) <= tq_slot_bytes, "a lane's value is at most 32 bytes");
  return tq_meet(&value, sizeof(T), operation, TQ_HERE);
}

template <class T>
TQ_OPAQUE T brought(const tq_exchange& met, uint lane) {
  T value;
  __builtin_memcpy(&value, met.slots + tq_slot_bytes * lane, sizeof(T));
  return value;
}

template <class T>
TQ_OPAQUE T asked(const tq_exchange& met, uint lane, const char* operation, TQ_SITE) {
  if (lane < tq_lanes && (met.active >> lane & 1)) return brought<T>(met, lane);
  tq_absent_lane(operation, lane, TQ_HERE);
  return T(0);
}

// All active lanes' values joined pairwise, neighbours first; hardware's own order is not documented.
template <class T, class Join>
TQ_OPAQUE T joined(const tq_exchange& met, Join join) {
  T values[tq_lanes];
  uint count = 0;
  for (uint lane = 0; lane < tq_lanes; lane++)
    if (met.active >> lane & 1) values[count++] = brought<T>(met, lane);
  for (uint step = 1; step < count; step *= 2)
    for (uint i = 0; i + step < count; i += 2 * step) values[i] = join(values[i], values[i + step]);
  return values[0];
}

// The values of the active lanes below `end`, joined from `start` upwards.
template <class T, class Join>
TQ_OPAQUE T prefix(const tq_exchange& met, uint end, T start, Join join) {
  for (uint lane = 0; lane < end; lane++)
    if (met.active >> lane & 1) start = join(start, brought<T>(met, lane));
  return start;
}
}  // namespace lanes

#define TQ_JOIN(name, value)                                                            \
  template <class T>                                                                    \
  TQ_INLINE T name(T x, TQ_SITE) {                                                      \
    return lanes::joined<T>(lanes::meet(x, #name, file, line, column), [](T a, T b) { return T(value); }); \
  }
TQ_JOIN(simd_sum, (a + b))
TQ_JOIN(simd_product, (a * b))
TQ_JOIN(simd_max, (max(a, b)))
TQ_JOIN(simd_min, (min(a, b)))
TQ_JOIN(simd_and, (a & b))
TQ_JOIN(simd_or, (a | b))
TQ_JOIN(simd_xor, (a ^ b))
#undef TQ_JOIN

#define TQ_PREFIX(name, more, start, value)                                                                  \
  template <class T>                                                                                         \
  TQ_INLINE T name(T x, TQ_SITE) {                                                                           \
    tq_exchange met = lanes::meet(x, #name, file, line, column);                                                     \
    return lanes::prefix<T>(met, met.lane + more, T(start), [](T a, T b) { return T(value); });               \
  }
TQ_PREFIX(simd_prefix_inclusive_sum, 1, 0, (a + b))
TQ_PREFIX(simd_prefix_exclusive_sum, 0, 0, (a + b))
TQ_PREFIX(simd_prefix_inclusive_product, 1, 1, (a * b))
TQ_PREFIX(simd_prefix_exclusive_product, 0, 1, (a * b))
#undef TQ_PREFIX

// Where the asked lane would lie outside the simdgroup, `outside` is the result; not so if no lane could be inside.
#define TQ_SHUFFLE(name, from, is_outside, outside)                               \
  template <class T>                                                              \
  TQ_INLINE T name(T x, ushort n, TQ_SITE) {                                      \
    tq_exchange met = lanes::meet(x, #name, file, line, column);                          \
    return is_outside ? outside : lanes::asked<T>(met, from, #name, file, line, column);  \
  }
TQ_SHUFFLE(simd_shuffle, n, false, x)
TQ_SHUFFLE(simd_broadcast, n, false, x)
TQ_SHUFFLE(simd_shuffle_xor, met.lane ^ n, false, x)
TQ_SHUFFLE(simd_shuffle_up, met.lane - n, n < tq_lanes && met.lane < n, x)
TQ_SHUFFLE(simd_shuffle_down, met.lane + n, n < tq_lanes && met.lane + n >= tq_lanes, x)
TQ_SHUFFLE(simd_shuffle_rotate_up, (met.lane - n) % tq_lanes, false, x)
TQ_SHUFFLE(simd_shuffle_rotate_down, (met.lane + n) % tq_lanes, false, x)
#undef TQ_SHUFFLE

template <class T>
TQ_INLINE T simd_broadcast_first(T x, TQ_SITE) {
  tq_exchange met = lanes::meet(x, "simd_broadcast_first", file, line, column);
  return lanes::brought<T>(met, uint(__builtin_ctz(met.active)));
}

struct simd_vote {
  typedef ulong vote_t;
  vote_t votes;
  uint active;
  explicit operator vote_t() const { return votes; }
  explicit operator uint() const { return uint(votes); }
  bool any() const { return votes != 0; }
  bool all() const { return votes == active; }
};
TQ_INLINE simd_vote simd_ballot(bool x, TQ_SITE) {
  tq_exchange met = lanes::meet(x ? 1u : 0u, "simd_ballot", file, line, column);
  simd_vote result = {0, met.active};
  for (uint lane = 0; lane < tq_lanes; lane++)
    if (met.active >> lane & 1) result.votes |= ulong(lanes::brought<uint>(met, lane)) << lane;
  return result;
}
TQ_INLINE simd_vote simd_active_threads_mask(TQ_SITE) { return simd_ballot(true, file, line, column); }
TQ_INLINE bool simd_any(bool x, TQ_SITE) { return simd_ballot(x, file, line, column).any(); }
TQ_INLINE bool simd_all(bool x, TQ_SITE) { return simd_ballot(x, file, line, column).all(); }
TQ_INLINE bool simd_is_first(TQ_SITE) {
  tq_exchange met = lanes::meet(0u, "simd_is_first", file, line, column);
  return met.lane == uint(__builtin_ctz(met.active));
}
}  // namespace metal
