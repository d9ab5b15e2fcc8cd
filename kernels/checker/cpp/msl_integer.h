// The functions of integers of the Metal Shading Language.
#pragma once
#include "msl_math.h"

namespace metal {
template <class T>
TQ_INLINE ulong widened(T x) {
  return ulong(x) & (~0ul >> (64 - 8 * sizeof(T)));
}
template <class T>
TQ_INLINE T popcount(T x) {
  return T(__builtin_popcountl(widened(x)));
}
template <class T>
TQ_INLINE T clz(T x) {
  return T(x ? __builtin_clzl(widened(x)) - int(64 - 8 * sizeof(T)) : int(8 * sizeof(T)));
}
template <class T>
TQ_INLINE T ctz(T x) {
  return T(x ? __builtin_ctzl(widened(x)) : int(8 * sizeof(T)));
}
template <class T>
TQ_INLINE T reverse_bits(T x) {
  T y = 0;
  for (uint i = 0; i < 8 * sizeof(T); i++) y |= T((x >> i) & 1) << (8 * sizeof(T) - 1 - i);
  return y;
}
template <class T>
TQ_INLINE T extract_bits(T x, uint offset, uint bits) {
  return bits == 0 ? T(0) : T(T(x << (8 * sizeof(T) - offset - bits)) >> (8 * sizeof(T) - bits));
}
template <class T>
TQ_INLINE T insert_bits(T base, T inserted, uint offset, uint bits) {
  ulong mask = (bits < 64 ? (1ul << bits) - 1 : ~0ul) << offset;
  return T((widened(base) & ~mask) | ((widened(inserted) << offset) & mask));
}
template <class T>
TQ_INLINE T rotate(T x, T left) {
  uint n = uint(widened(left)) % (8 * sizeof(T));
  return n ? T((widened(x) << n) | (widened(x) >> (8 * sizeof(T) - n))) : x;
}

// Of any width, what doesn't fit comes back to the nearest that does.
template <class T>
TQ_INLINE T saturated(__int128 x) {
  __int128 low = numeric_limits<T>::min(), high = numeric_limits<T>::max();
  return T(x < low ? low : x > high ? high : x);
}
#define TQ_WIDE_2(name, value)           \
  template <class T>                     \
  TQ_INLINE T name(T a, T b) {           \
    __int128 x = a, y = b;               \
    return value;                        \
  }                                      \
  TQ_EACH_2(name)
#define TQ_WIDE_3(name, value)           \
  template <class T>                     \
  TQ_INLINE T name(T a, T b, T c) {      \
    __int128 x = a, y = b, z = c;        \
    return value;                        \
  }                                      \
  TQ_EACH_3(name)
// The 24 lower bits of an integer, with its sign.
template <class T>
TQ_INLINE T lower_24(T x) {
  return T(T(uint(x) << 8) >> 8);
}
TQ_WIDE_2(absdiff, T(x < y ? y - x : x - y))
TQ_WIDE_2(addsat, saturated<T>(x + y))
TQ_WIDE_2(subsat, saturated<T>(x - y))
TQ_WIDE_2(hadd, T((x + y) >> 1))
TQ_WIDE_2(rhadd, T((x + y + 1) >> 1))
TQ_WIDE_2(mulhi, T((x * y) >> (8 * sizeof(T))))
TQ_WIDE_2(mul24, T(__int128(lower_24(T(x))) * lower_24(T(y))))
TQ_WIDE_3(madhi, T(((x * y) >> (8 * sizeof(T))) + z))
TQ_WIDE_3(madsat, saturated<T>(x * y + z))
TQ_WIDE_3(mad24, T(__int128(lower_24(T(x))) * lower_24(T(y)) + z))
#undef TQ_WIDE_2
#undef TQ_WIDE_3
TQ_EACH_1(popcount)
TQ_EACH_1(clz)
TQ_EACH_1(ctz)
TQ_EACH_1(reverse_bits)
TQ_EACH_2(rotate)
}  // namespace metal
