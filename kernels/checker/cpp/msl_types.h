// The scalar types of the Metal Shading Language.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define TQ_INLINE inline __attribute__((always_inline))
// Not instrumented, so kept out of line: what reads the runner's own memory.
#define TQ_OPAQUE __attribute__((noinline, no_sanitize("thread")))

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef half float16_t;

// bfloat16: the upper half of a float32, rounded to the nearest, ties to even.
struct bfloat {
  uint16_t bits;

  bfloat() = default;
  constexpr bfloat(float x) : bits(rounded(x)) {}
  constexpr operator float() const { return __builtin_bit_cast(float, uint32_t(bits) << 16); }
  TQ_INLINE bfloat& operator+=(float x) { return *this = bfloat(float(*this) + x); }
  TQ_INLINE bfloat& operator-=(float x) { return *this = bfloat(float(*this) - x); }
  TQ_INLINE bfloat& operator*=(float x) { return *this = bfloat(float(*this) * x); }
  TQ_INLINE bfloat& operator/=(float x) { return *this = bfloat(float(*this) / x); }

 private:
  static constexpr uint16_t rounded(float x) {
    uint32_t u = __builtin_bit_cast(uint32_t, x);
    bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
    return is_nan ? uint16_t((u >> 16) | 0x40) : uint16_t((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
  }
};
typedef bfloat bfloat16_t;

// bfloat with bfloat or an integer stays bfloat; with float it becomes float.
#define TQ_BFLOAT(o)                                                                \
  constexpr bfloat operator o(bfloat a, bfloat b) { return float(a) o float(b); }   \
  constexpr bfloat operator o(bfloat a, int b) { return float(a) o float(b); }      \
  constexpr bfloat operator o(int a, bfloat b) { return float(a) o float(b); }      \
  constexpr bfloat operator o(bfloat a, uint b) { return float(a) o float(b); }     \
  constexpr bfloat operator o(uint a, bfloat b) { return float(a) o float(b); }     \
  constexpr float operator o(bfloat a, float b) { return float(a) o b; }            \
  constexpr float operator o(float a, bfloat b) { return a o float(b); }
TQ_BFLOAT(+)
TQ_BFLOAT(-)
TQ_BFLOAT(*)
TQ_BFLOAT(/)
#undef TQ_BFLOAT

constexpr half operator""h(long double x) { return half(x); }

namespace metal {
template <class To, class From>
TQ_INLINE To as_type(From x) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  return __builtin_bit_cast(To, x);
}

template <class A, class B>
constexpr bool is_same_v = false;
template <class A>
constexpr bool is_same_v<A, A> = true;

template <class T>
struct numeric_limits;
template <>
struct numeric_limits<float> {
  static constexpr float infinity() { return __builtin_inff(); }
  static constexpr float quiet_NaN() { return __builtin_nanf(""); }
  static constexpr float max() { return 3.402823466e38f; }
  static constexpr float min() { return 1.175494351e-38f; }
  static constexpr float lowest() { return -max(); }
  static constexpr float epsilon() { return 1.1920929e-7f; }
};
template <>
struct numeric_limits<uint> {
  static constexpr uint max() { return 0xffffffffu; }
  static constexpr uint min() { return 0; }
};
template <>
struct numeric_limits<int> {
  static constexpr int max() { return 0x7fffffff; }
  static constexpr int min() { return -max() - 1; }
};
}  // namespace metal

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define MAXFLOAT 3.402823466e38f
#define FLT_MAX 3.402823466e38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.1920929e-7f
#define HALF_MAX half(65504.0f)
#define UINT_MAX 0xffffffffu
#define INT_MAX 0x7fffffff
#define M_PI_F 3.14159265358979323846f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f
