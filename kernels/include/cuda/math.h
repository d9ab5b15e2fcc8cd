// Metal's arithmetic functions for CUDA. Of halves and bfloats they are computed in float and rounded once.

namespace metal {

#define TQ_OF_HALVES(name)                                                                       \
  inline __half name(__half x) { return __half(name(static_cast<float>(x))); }                   \
  inline __nv_bfloat16 name(__nv_bfloat16 x) { return __nv_bfloat16(name(static_cast<float>(x))); }
#define TQ_FUNCTION(name, accurate, quick)                  \
  namespace precise {                                       \
  inline float name(float x) { return accurate; }           \
  }                                                         \
  namespace fast {                                          \
  inline float name(float x) { return quick; }              \
  }                                                         \
  inline float name(float x) { return accurate; }           \
  TQ_OF_HALVES(name)
#define TQ_PLAIN_FUNCTION(name) TQ_FUNCTION(name, ::name##f(x), ::name##f(x))
TQ_FUNCTION(exp, ::expf(x), ::__expf(x))
TQ_FUNCTION(exp10, ::exp10f(x), ::__exp10f(x))
TQ_FUNCTION(log, ::logf(x), ::__logf(x))
TQ_FUNCTION(log2, ::log2f(x), ::__log2f(x))
TQ_FUNCTION(log10, ::log10f(x), ::__log10f(x))
TQ_FUNCTION(sin, ::sinf(x), ::__sinf(x))
TQ_FUNCTION(cos, ::cosf(x), ::__cosf(x))
TQ_FUNCTION(saturate, ::__saturatef(x), ::__saturatef(x))
TQ_FUNCTION(fract, ::fminf(x - ::floorf(x), 0.99999994f), ::fminf(x - ::floorf(x), 0.99999994f))
TQ_FUNCTION(sign, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == x ? x : 0.0f, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f)
TQ_PLAIN_FUNCTION(exp2)
TQ_PLAIN_FUNCTION(sqrt)
TQ_PLAIN_FUNCTION(rsqrt)
TQ_PLAIN_FUNCTION(tan)
TQ_PLAIN_FUNCTION(asin)
TQ_PLAIN_FUNCTION(acos)
TQ_PLAIN_FUNCTION(atan)
TQ_PLAIN_FUNCTION(sinh)
TQ_PLAIN_FUNCTION(cosh)
TQ_PLAIN_FUNCTION(tanh)
TQ_PLAIN_FUNCTION(floor)
TQ_PLAIN_FUNCTION(ceil)
TQ_PLAIN_FUNCTION(round)
TQ_PLAIN_FUNCTION(rint)
TQ_PLAIN_FUNCTION(trunc)
TQ_PLAIN_FUNCTION(fabs)
#undef TQ_PLAIN_FUNCTION
#undef TQ_FUNCTION
#undef TQ_OF_HALVES

#define TQ_BINARY(name)                                                                          \
  inline float name(float a, float b) { return ::name##f(a, b); }                                \
  inline __half name(__half a, __half b) { return __half(::name##f(float(a), float(b))); }       \
  inline __nv_bfloat16 name(__nv_bfloat16 a, __nv_bfloat16 b) {                                  \
    return __nv_bfloat16(::name##f(float(a), float(b)));                                         \
  }
TQ_BINARY(pow)
TQ_BINARY(atan2)
TQ_BINARY(fmod)
TQ_BINARY(fmin)
TQ_BINARY(fmax)
TQ_BINARY(copysign)
#undef TQ_BINARY

inline float powr(float a, float b) { return ::powf(a, b); }
inline float ldexp(float x, int exponent) { return ::ldexpf(x, exponent); }
inline float frexp(float x, int& exponent) { return ::frexpf(x, &exponent); }
inline float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
inline __half fma(__half a, __half b, __half c) { return ::__hfma(a, b, c); }
inline __nv_bfloat16 fma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) { return ::__hfma(a, b, c); }
namespace precise {
inline float divide(float a, float b) { return ::__fdiv_rn(a, b); }
}
namespace fast {
inline float divide(float a, float b) { return ::__fdividef(a, b); }
}

template <typename T>
inline bool isnan(T x) {
  return (as_type<uint>(static_cast<float>(x)) & 0x7fffffffu) > 0x7f800000u;
}
template <typename T>
inline bool isinf(T x) {
  return (as_type<uint>(static_cast<float>(x)) & 0x7fffffffu) == 0x7f800000u;
}
template <typename T>
inline bool isfinite(T x) {
  return (as_type<uint>(static_cast<float>(x)) & 0x7fffffffu) < 0x7f800000u;
}
template <typename T>
inline bool signbit(T x) {
  return as_type<uint>(static_cast<float>(x)) >> 31;
}

// Of two floats, one of them NaN, min and max give the other, in Metal and here.
template <typename T>
inline T min(T a, T b) { return b < a ? b : a; }
template <typename T>
inline T max(T a, T b) { return a < b ? b : a; }
inline float min(float a, float b) { return ::fminf(a, b); }
inline float max(float a, float b) { return ::fmaxf(a, b); }
inline __half min(__half a, __half b) { return metal::fmin(a, b); }
inline __half max(__half a, __half b) { return metal::fmax(a, b); }
inline __nv_bfloat16 min(__nv_bfloat16 a, __nv_bfloat16 b) { return metal::fmin(a, b); }
inline __nv_bfloat16 max(__nv_bfloat16 a, __nv_bfloat16 b) { return metal::fmax(a, b); }
template <typename T>
inline T clamp(T x, T low, T high) { return metal::min(metal::max(x, low), high); }
template <typename T>
inline T abs(T x) { return x < T(0) ? T(-x) : x; }
inline float abs(float x) { return ::fabsf(x); }
inline __half abs(__half x) { return metal::fabs(x); }
inline __nv_bfloat16 abs(__nv_bfloat16 x) { return metal::fabs(x); }
template <typename T>
inline T mix(T a, T b, T share) { return a + (b - a) * share; }
template <typename T>
inline T select(T a, T b, bool second) { return second ? b : a; }
template <typename T>
inline T step(T edge, T x) { return x < edge ? T(0) : T(1); }
template <typename T, typename U>
inline T ceildiv(T n, U m) { return (n + m - 1) / m; }

template <typename T>
inline ulong zero_extended(T x) {
  return static_cast<ulong>(x) & (~0ul >> (64 - 8 * sizeof(T)));
}
template <typename T>
inline T popcount(T x) { return T(::__popcll(zero_extended(x))); }
template <typename T>
inline T clz(T x) { return T(::__clzll(zero_extended(x)) - (64 - 8 * int(sizeof(T)))); }
template <typename T>
inline T ctz(T x) { return x == T(0) ? T(8 * sizeof(T)) : T(::__ffsll(static_cast<long long>(x)) - 1); }
template <typename T>
inline T reverse_bits(T x) { return T(::__brevll(zero_extended(x)) >> (64 - 8 * sizeof(T))); }
inline uint rotate(uint x, uint n) { return ::__funnelshift_l(x, x, n); }
inline uint mulhi(uint a, uint b) { return ::__umulhi(a, b); }
inline int mulhi(int a, int b) { return ::__mulhi(a, b); }
inline uint extract_bits(uint x, uint offset, uint bits) {
  return bits == 0 ? 0 : (x >> offset) & (~0u >> (32 - bits));
}
inline uint insert_bits(uint base, uint x, uint offset, uint bits) {
  uint mask = bits == 0 ? 0 : (~0u >> (32 - bits)) << offset;
  return (base & ~mask) | ((x << offset) & mask);
}

}  // namespace metal
