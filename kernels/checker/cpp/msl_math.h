// The mathematical functions of the Metal Shading Language; half and bfloat go through float.
#pragma once
#include "msl_vectors.h"

namespace metal {
#define TQ_UNARY(name, value)                            \
  TQ_INLINE float name(float x) { return value; }        \
  TQ_INLINE half name(half h) {                          \
    float x = h;                                         \
    return half(value);                                  \
  }                                                      \
  TQ_INLINE bfloat name(bfloat h) {                      \
    float x = h;                                         \
    return bfloat(value);                                \
  }                                                      \
  template <class T, int N>                              \
  TQ_INLINE vec<T, N> name(vec<T, N> a) {                \
    for (int i = 0; i < N; i++) a[i] = name(a[i]);       \
    return a;                                            \
  }                                                      \
  namespace fast {                                       \
  TQ_INLINE float name(float x) { return value; }        \
  }                                                      \
  namespace precise {                                    \
  TQ_INLINE float name(float x) { return value; }        \
  }
TQ_UNARY(acos, __builtin_acosf(x))
TQ_UNARY(asin, __builtin_asinf(x))
TQ_UNARY(atan, __builtin_atanf(x))
TQ_UNARY(ceil, __builtin_ceilf(x))
TQ_UNARY(cos, __builtin_cosf(x))
TQ_UNARY(cosh, __builtin_coshf(x))
TQ_UNARY(exp, __builtin_expf(x))
TQ_UNARY(exp2, __builtin_exp2f(x))
TQ_UNARY(exp10, __builtin_powf(10.0f, x))
TQ_UNARY(fabs, __builtin_fabsf(x))
TQ_UNARY(floor, __builtin_floorf(x))
TQ_UNARY(fract, (x - __builtin_floorf(x)))
TQ_UNARY(log, __builtin_logf(x))
TQ_UNARY(log2, __builtin_log2f(x))
TQ_UNARY(log10, __builtin_log10f(x))
TQ_UNARY(rint, __builtin_rintf(x))
TQ_UNARY(round, __builtin_roundf(x))
TQ_UNARY(rsqrt, (1.0f / __builtin_sqrtf(x)))
TQ_UNARY(saturate, (x > 0.0f ? x < 1.0f ? x : 1.0f : 0.0f))
TQ_UNARY(sign, (x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x))
TQ_UNARY(sin, __builtin_sinf(x))
TQ_UNARY(sinh, __builtin_sinhf(x))
TQ_UNARY(sqrt, __builtin_sqrtf(x))
TQ_UNARY(tan, __builtin_tanf(x))
TQ_UNARY(tanh, __builtin_tanhf(x))
TQ_UNARY(trunc, __builtin_truncf(x))
#undef TQ_UNARY

#define TQ_BINARY(name)                                                                       \
  TQ_INLINE float name(float a, float b) { return __builtin_##name##f(a, b); }                \
  TQ_INLINE half name(half a, half b) { return half(__builtin_##name##f(float(a), float(b))); } \
  namespace precise {                                                                         \
  TQ_INLINE float name(float a, float b) { return __builtin_##name##f(a, b); }                \
  }
TQ_BINARY(atan2)
TQ_BINARY(copysign)
TQ_BINARY(fmax)
TQ_BINARY(fmin)
TQ_BINARY(fmod)
TQ_BINARY(pow)
#undef TQ_BINARY
TQ_INLINE float powr(float a, float b) { return __builtin_powf(a, b); }
TQ_INLINE float ldexp(float a, int b) { return __builtin_ldexpf(a, b); }
TQ_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
TQ_INLINE bool isnan(float x) { return x != x; }
TQ_INLINE bool isinf(float x) { return __builtin_isinf(x); }
TQ_INLINE bool isfinite(float x) { return __builtin_isfinite(x); }
TQ_INLINE bool signbit(float x) { return __builtin_signbit(x); }

// As Metal's for floats: the other operand where one is NaN.
template <class T>
TQ_INLINE T min(T a, T b) {
  return b < a || a != a ? b : a;
}
template <class T>
TQ_INLINE T max(T a, T b) {
  return a < b || a != a ? b : a;
}
template <class T, int N>
TQ_INLINE vec<T, N> min(vec<T, N> a, vec<T, N> b) {
  for (int i = 0; i < N; i++) a[i] = min(a[i], b[i]);
  return a;
}
template <class T, int N>
TQ_INLINE vec<T, N> max(vec<T, N> a, vec<T, N> b) {
  for (int i = 0; i < N; i++) a[i] = max(a[i], b[i]);
  return a;
}
template <class T>
TQ_INLINE T clamp(T x, typename itself<T>::type low, typename itself<T>::type high) {
  return min(max(x, low), high);
}
template <class T>
TQ_INLINE T abs(T x) {
  return x < T(0) ? T(-x) : x;
}
template <class T>
TQ_INLINE T mix(T a, T b, T t) {
  return a + (b - a) * t;
}
template <class T>
TQ_INLINE T select(T a, T b, bool second) {
  return second ? b : a;
}

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
TQ_INLINE uint mulhi(uint a, uint b) { return uint((ulong(a) * b) >> 32); }
}  // namespace metal
