// The mathematical functions of the Metal Shading Language; half and bfloat go through float.
#pragma once
#include "msl_vectors.h"

namespace metal {
#define TQ_QUICK(signature, value)                   \
  TQ_INLINE float signature { return value; }        \
  namespace fast {                                   \
  TQ_INLINE float signature { return value; }        \
  }                                                  \
  namespace precise {                                \
  TQ_INLINE float signature { return value; }        \
  }

#define TQ_UNARY(name, value)         \
  TQ_QUICK(name(float x), value)      \
  TQ_INLINE half name(half h) {       \
    float x = h;                      \
    return half(value);               \
  }                                   \
  TQ_INLINE bfloat name(bfloat h) {   \
    float x = h;                      \
    return bfloat(value);             \
  }                                   \
  TQ_EACH_1(name)
TQ_UNARY(acos, __builtin_acosf(x))
TQ_UNARY(acosh, __builtin_acoshf(x))
TQ_UNARY(asin, __builtin_asinf(x))
TQ_UNARY(asinh, __builtin_asinhf(x))
TQ_UNARY(atan, __builtin_atanf(x))
TQ_UNARY(atanh, __builtin_atanhf(x))
TQ_UNARY(ceil, __builtin_ceilf(x))
TQ_UNARY(cos, __builtin_cosf(x))
TQ_UNARY(cosh, __builtin_coshf(x))
TQ_UNARY(cospi, float(__builtin_cos(3.14159265358979323846 * __builtin_fmod(x, 2.0))))
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
TQ_UNARY(sign, (x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? x : 0.0f))
TQ_UNARY(sin, __builtin_sinf(x))
TQ_UNARY(sinh, __builtin_sinhf(x))
TQ_UNARY(sinpi, float(__builtin_sin(3.14159265358979323846 * __builtin_fmod(x, 2.0))))
TQ_UNARY(sqrt, __builtin_sqrtf(x))
TQ_UNARY(tan, __builtin_tanf(x))
TQ_UNARY(tanh, __builtin_tanhf(x))
TQ_UNARY(tanpi, float(__builtin_tan(3.14159265358979323846 * __builtin_fmod(x, 1.0))))
TQ_UNARY(trunc, __builtin_truncf(x))
#undef TQ_UNARY

#define TQ_BINARY(name, value)                                \
  TQ_QUICK(name(float x, float y), value)                     \
  TQ_INLINE half name(half a, half b) {                       \
    float x = a, y = b;                                       \
    return half(value);                                       \
  }                                                           \
  TQ_EACH_2(name)
TQ_BINARY(atan2, __builtin_atan2f(x, y))
TQ_BINARY(copysign, __builtin_copysignf(x, y))
TQ_BINARY(divide, (x / y))
TQ_BINARY(fdim, __builtin_fdimf(x, y))
TQ_BINARY(fmax, __builtin_fmaxf(x, y))
TQ_BINARY(fmin, __builtin_fminf(x, y))
TQ_BINARY(fmod, __builtin_fmodf(x, y))
TQ_BINARY(pow, __builtin_powf(x, y))
TQ_BINARY(powr, __builtin_powf(x, y))
#undef TQ_BINARY
TQ_INLINE float nextafter(float x, float y) { return __builtin_nextafterf(x, y); }
TQ_EACH_2(nextafter)
TQ_INLINE half fma(half a, half b, half c) { return half(__builtin_fmaf(float(a), float(b), float(c))); }
TQ_QUICK(fma(float a, float b, float c), __builtin_fmaf(a, b, c))
TQ_EACH_3(fma)
#undef TQ_QUICK

TQ_INLINE float ldexp(float x, int n) { return __builtin_ldexpf(x, n); }
TQ_INLINE half ldexp(half x, int n) { return half(__builtin_ldexpf(float(x), n)); }
TQ_INLINE int ilogb(float x) { return __builtin_ilogbf(x); }
// Through variables of their own: the C library writes unseen.
TQ_INLINE float frexp(float x, int& exponent) {
  int n = 0;
  float fraction = __builtin_frexpf(x, &n);
  exponent = n;
  return fraction;
}
TQ_INLINE half frexp(half x, int& exponent) { return half(frexp(float(x), exponent)); }
template <class T>
TQ_INLINE T modf(T x, T& whole) {
  whole = trunc(x);
  return __builtin_isinf(float(x)) ? copysign(T(0), x) : copysign(T(x - whole), x);
}
template <class T>
TQ_INLINE T sincos(T x, T& cosine) {
  cosine = cos(x);
  return sin(x);
}
namespace fast {
using metal::sincos;
}
namespace precise {
using metal::sincos;
}

#define TQ_TEST(name, value)                                            \
  TQ_INLINE bool name(float x) { return value; }                        \
  template <class T, int N>                                             \
  TQ_INLINE vec<bool, N> name(vec<T, N> a) {                            \
    vec<bool, N> result;                                                \
    for (int i = 0; i < N; i++) result[i] = name(a[i]);                 \
    return result;                                                      \
  }
TQ_TEST(isnan, (x != x))
TQ_TEST(isinf, __builtin_isinf(x))
TQ_TEST(isfinite, __builtin_isfinite(x))
TQ_TEST(isnormal, __builtin_isnormal(x))
TQ_TEST(signbit, __builtin_signbit(x))
#undef TQ_TEST
TQ_INLINE bool isunordered(float x, float y) { return x != x || y != y; }
TQ_INLINE bool isordered(float x, float y) { return !isunordered(x, y); }

// As Metal's for floats: the other operand where one is NaN.
template <class T>
TQ_INLINE T min(T a, T b) {
  return b < a || a != a ? b : a;
}
template <class T>
TQ_INLINE T max(T a, T b) {
  return a < b || a != a ? b : a;
}
TQ_EACH_2(min)
TQ_EACH_2(max)
#define TQ_OF_THREE(name, value)         \
  template <class T>                     \
  TQ_INLINE T name(T a, T b, T c) {      \
    return value;                        \
  }
TQ_OF_THREE(min3, min(a, min(b, c)))
TQ_OF_THREE(max3, max(a, max(b, c)))
TQ_OF_THREE(median3, max(min(a, b), min(max(a, b), c)))
TQ_OF_THREE(fmin3, min3(a, b, c))
TQ_OF_THREE(fmax3, max3(a, b, c))
TQ_OF_THREE(fmedian3, median3(a, b, c))
#undef TQ_OF_THREE
template <class T>
TQ_INLINE T clamp(T x, typename itself<T>::type low, typename itself<T>::type high) {
  return min(max(x, low), high);
}
namespace fast {
using metal::clamp;
}
namespace precise {
using metal::clamp;
}
template <class T>
TQ_INLINE T abs(T x) {
  return x < T(0) ? T(-x) : x;
}
TQ_EACH_1(abs)
template <class T>
TQ_INLINE T mix(T a, T b, typename itself<T>::type t) {
  return a + (b - a) * t;
}
template <class T>
TQ_INLINE T select(T a, T b, bool second) {
  return second ? b : a;
}
template <class T, int N>
TQ_INLINE vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> second) {
  for (int i = 0; i < N; i++) a[i] = second[i] ? b[i] : a[i];
  return a;
}
template <class T>
TQ_INLINE T step(T edge, T x) {
  return x < edge ? T(0) : T(1);
}
TQ_EACH_2(step)
template <class T>
TQ_INLINE T smoothstep(typename itself<T>::type low, typename itself<T>::type high, T x) {
  T t = clamp(T((x - low) / (high - low)), T(0), T(1));
  return t * t * (T(3) - T(2) * t);
}
}  // namespace metal
