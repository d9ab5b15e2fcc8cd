// half for compilers without _Float16. A float's operation rounded to half is the half's own: 24 bits are enough for that.
#pragma once
#include "msl_types.h"

struct half {
  uint16_t bits;

  half() = default;
  constexpr half(float x) : bits(rounded(x)) {}
  constexpr operator float() const { return widened(bits); }
  TQ_SMALL_FLOAT_UPDATES(half)

 private:
  static constexpr float widened(uint32_t h) {
    uint32_t sign = (h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest < 0x400u) {  // subnormal: a multiple of 2^-24
      float size = float(rest) * 5.9604644775390625e-8f;
      return sign ? -size : size;
    }
    uint32_t exponent = rest < 0x7c00u ? (rest << 13) + (112u << 23) : (rest << 13) | 0x7f800000u;
    return __builtin_bit_cast(float, sign | exponent);
  }
  // To the nearest, ties to even.
  static constexpr uint16_t rounded(float x) {
    uint32_t u = __builtin_bit_cast(uint32_t, x), sign = (u >> 16) & 0x8000u, rest = u & 0x7fffffffu;
    if (rest > 0x7f800000u) return uint16_t(sign | 0x7e00u | ((rest >> 13) & 0x3ffu));
    if (rest >= 0x47800000u) return uint16_t(sign | 0x7c00u);  // 65536 and above
    if (rest < 0x38800000u) {  // adding 1/2 leaves the multiple of 2^-24 in the last bits
      float shifted = __builtin_bit_cast(float, rest) + 0.5f;
      return uint16_t(sign | (__builtin_bit_cast(uint32_t, shifted) - 0x3f000000u));
    }
    uint32_t kept = rest - (112u << 23);
    return uint16_t(sign | ((kept + 0xfffu + ((kept >> 13) & 1)) >> 13));
  }
};
TQ_SMALL_FLOAT(half)
