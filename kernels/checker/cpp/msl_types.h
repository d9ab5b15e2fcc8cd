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

// A small float with one of its kind or an integer keeps its type; with float it becomes float.
#define TQ_SMALL_FLOAT_OPERATOR(T, o)                                  \
  constexpr T operator o(T a, T b) { return float(a) o float(b); }     \
  constexpr T operator o(T a, int b) { return float(a) o float(b); }   \
  constexpr T operator o(int a, T b) { return float(a) o float(b); }   \
  constexpr T operator o(T a, uint b) { return float(a) o float(b); }  \
  constexpr T operator o(uint a, T b) { return float(a) o float(b); }  \
  constexpr float operator o(T a, float b) { return float(a) o b; }    \
  constexpr float operator o(float a, T b) { return a o float(b); }
#define TQ_SMALL_FLOAT(T)                                  \
  constexpr T operator-(T a) { return -float(a); }         \
  TQ_SMALL_FLOAT_OPERATOR(T, +) \
  TQ_SMALL_FLOAT_OPERATOR(T, -) \
  TQ_SMALL_FLOAT_OPERATOR(T, *) \
  TQ_SMALL_FLOAT_OPERATOR(T, /)
#define TQ_SMALL_FLOAT_UPDATES(T)                                                \
  TQ_INLINE T& operator+=(float x) { return *this = T(float(*this) + x); }       \
  TQ_INLINE T& operator-=(float x) { return *this = T(float(*this) - x); }       \
  TQ_INLINE T& operator*=(float x) { return *this = T(float(*this) * x); }       \
  TQ_INLINE T& operator/=(float x) { return *this = T(float(*this) / x); }

#ifdef __FLT16_MAX__
typedef _Float16 half;
#else
#include "msl_half.h"
#endif
typedef half float16_t;

// bfloat16: the upper half of a float32, rounded to the nearest, ties to even.
struct bfloat {
  uint16_t bits;

  bfloat() = default;
  constexpr bfloat(float x) : bits(rounded(x)) {}
  constexpr operator float() const { return __builtin_bit_cast(float, uint32_t(bits) << 16); }
  TQ_SMALL_FLOAT_UPDATES(bfloat)

 private:
  static constexpr uint16_t rounded(float x) {
    uint32_t u = __builtin_bit_cast(uint32_t, x);
    bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
    return is_nan ? uint16_t((u >> 16) | 0x40) : uint16_t((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
  }
};
typedef bfloat bfloat16_t;

TQ_SMALL_FLOAT(bfloat)

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
#define TQ_FLOAT_LIMITS(T, largest, smallest, step)                             \
  template <>                                                                    \
  struct numeric_limits<T> {                                                     \
    static constexpr T infinity() { return T(__builtin_inff()); }                \
    static constexpr T quiet_NaN() { return T(__builtin_nanf("")); }             \
    static constexpr T max() { return T(largest); }                              \
    static constexpr T min() { return T(smallest); }                             \
    static constexpr T lowest() { return T(-largest); }                          \
    static constexpr T epsilon() { return T(step); }                             \
  };
TQ_FLOAT_LIMITS(float, 3.402823466e38f, 1.175494351e-38f, 1.1920929e-7f)
TQ_FLOAT_LIMITS(half, 65504.0f, 6.103515625e-5f, 9.765625e-4f)
TQ_FLOAT_LIMITS(bfloat, 3.38953139e38f, 1.175494351e-38f, 7.8125e-3f)
#undef TQ_FLOAT_LIMITS
#define TQ_INTEGER_LIMITS(T, smallest, largest)             \
  template <>                                               \
  struct numeric_limits<T> {                                \
    static constexpr T max() { return T(largest); }         \
    static constexpr T min() { return T(smallest); }        \
    static constexpr T lowest() { return T(smallest); }     \
  };
TQ_INTEGER_LIMITS(char, -128, 127)
typedef signed char tq_signed_char;  // int8_t
TQ_INTEGER_LIMITS(tq_signed_char, -128, 127)
TQ_INTEGER_LIMITS(uchar, 0, 255)
TQ_INTEGER_LIMITS(short, -32768, 32767)
TQ_INTEGER_LIMITS(ushort, 0, 65535)
TQ_INTEGER_LIMITS(int, -2147483647 - 1, 2147483647)
TQ_INTEGER_LIMITS(uint, 0, 4294967295u)
TQ_INTEGER_LIMITS(long, -9223372036854775807l - 1, 9223372036854775807l)
TQ_INTEGER_LIMITS(ulong, 0, 18446744073709551615ul)
#undef TQ_INTEGER_LIMITS
}  // namespace metal

#define INFINITY __builtin_inff()
#define HUGE_VALF __builtin_inff()
#define NAN __builtin_nanf("")
#define MAXFLOAT 3.402823466e38f
#define FLT_MAX 3.402823466e38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.1920929e-7f
#define MAXHALF half(65504.0f)
#define HALF_MAX half(65504.0f)
#define HALF_MIN half(6.103515625e-5f)
#define HALF_EPSILON half(9.765625e-4f)
#define CHAR_MAX 127
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define UINT_MAX 0xffffffffu
#define INT_MAX 0x7fffffff
#define INT_MIN (-0x7fffffff - 1)
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LOG10E_F 0.43429448190325182765f
#define M_LN2_F 0.69314718055994530942f
#define M_LN10_F 2.30258509299404568402f
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_PI_4_F 0.78539816339744830962f
#define M_1_PI_F 0.31830988618379067154f
#define M_2_PI_F 0.63661977236758134308f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f
