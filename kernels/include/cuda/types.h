// Types of the Metal Shading Language for CUDA: scalars, half and bfloat arithmetic as Metal has it, vectors.
//
// This folder's files and names.h come before the Metal text of a kernel, which then compiles for NVIDIA GPUs as it is.
// NVRTC treats functions without a mark as __device__ functions (--device-as-default-execution-space).

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef __half float16_t;
typedef __nv_bfloat16 bfloat;
typedef __nv_bfloat16 bfloat16_t;

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fc00000)
#endif
#ifndef FLT_MAX
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#endif
#define M_PI_F 3.14159265358979323846f
#define M_LN2_F 0.69314718055994530942f
#define M_LOG2E_F 1.44269504088896340736f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f

// In Metal a half beside a float becomes a float, and an integer beside a half becomes a half. CUDA calls both ambiguous.
#define TQ_WITH_FLOAT(op, result, H)                                                  \
  inline result operator op(H a, float b) { return static_cast<float>(a) op b; }      \
  inline result operator op(float a, H b) { return a op static_cast<float>(b); }
#define TQ_WITH_INTEGER(op, result, H, I)                                             \
  inline result operator op(H a, I b) { return a op H(static_cast<float>(b)); }       \
  inline result operator op(I a, H b) { return H(static_cast<float>(a)) op b; }
#define TQ_OPERATOR(op, with_float, with_half)                                        \
  TQ_WITH_FLOAT(op, with_float(__half), __half)                                       \
  TQ_WITH_FLOAT(op, with_float(__nv_bfloat16), __nv_bfloat16)                         \
  TQ_WITH_INTEGER(op, with_half(__half), __half, int)                                 \
  TQ_WITH_INTEGER(op, with_half(__half), __half, uint)                                \
  TQ_WITH_INTEGER(op, with_half(__nv_bfloat16), __nv_bfloat16, int)                   \
  TQ_WITH_INTEGER(op, with_half(__nv_bfloat16), __nv_bfloat16, uint)
#define TQ_FLOAT(H) float
#define TQ_SAME(H) H
#define TQ_BOOL(H) bool
TQ_OPERATOR(+, TQ_FLOAT, TQ_SAME)
TQ_OPERATOR(-, TQ_FLOAT, TQ_SAME)
TQ_OPERATOR(*, TQ_FLOAT, TQ_SAME)
TQ_OPERATOR(/, TQ_FLOAT, TQ_SAME)
TQ_OPERATOR(==, TQ_BOOL, TQ_BOOL)
TQ_OPERATOR(!=, TQ_BOOL, TQ_BOOL)
TQ_OPERATOR(<, TQ_BOOL, TQ_BOOL)
TQ_OPERATOR(<=, TQ_BOOL, TQ_BOOL)
TQ_OPERATOR(>, TQ_BOOL, TQ_BOOL)
TQ_OPERATOR(>=, TQ_BOOL, TQ_BOOL)
#undef TQ_WITH_FLOAT
#undef TQ_WITH_INTEGER
#undef TQ_OPERATOR
#undef TQ_FLOAT
#undef TQ_SAME
#undef TQ_BOOL

namespace metal {

using cuda::std::numeric_limits;

template <typename To, typename From>
inline To as_type(From value) {
  static_assert(sizeof(To) == sizeof(From), "as_type: types of different sizes");
  To result;
  memcpy(&result, &value, sizeof(To));
  return result;
}

template <typename T, int N>
struct vec;

template <typename T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  vec() = default;
  vec(T all) : x(all), y(all) {}
  vec(T a, T b) : x(a), y(b) {}
  template <typename U>
  explicit vec(vec<U, 2> v) : x(v.x), y(v.y) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};

template <typename T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
  T x, y, z;
  vec() = default;
  vec(T all) : x(all), y(all), z(all) {}
  vec(T a, T b, T c) : x(a), y(b), z(c) {}
  template <typename U>
  explicit vec(vec<U, 3> v) : x(v.x), y(v.y), z(v.z) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};

template <typename T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
  vec() = default;
  vec(T all) : x(all), y(all), z(all), w(all) {}
  vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  vec(vec<T, 2> low, vec<T, 2> high) : x(low.x), y(low.y), z(high.x), w(high.y) {}
  template <typename U>
  explicit vec(vec<U, 4> v) : x(v.x), y(v.y), z(v.z), w(v.w) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};

#define TQ_VECTOR_OPERATOR(op)                                   \
  template <typename T, int N>                                   \
  inline vec<T, N> operator op(vec<T, N> a, vec<T, N> b) {       \
    for (int i = 0; i < N; i++) a[i] = T(a[i] op b[i]);          \
    return a;                                                    \
  }                                                              \
  template <typename T, int N>                                   \
  inline vec<T, N> operator op(vec<T, N> a, T b) {               \
    return a op vec<T, N>(b);                                    \
  }                                                              \
  template <typename T, int N>                                   \
  inline vec<T, N> operator op(T a, vec<T, N> b) {               \
    return vec<T, N>(a) op b;                                    \
  }                                                              \
  template <typename T, int N, typename U>                       \
  inline vec<T, N>& operator op##=(vec<T, N>& a, U b) {          \
    return a = a op vec<T, N>(b);                                \
  }
TQ_VECTOR_OPERATOR(+)
TQ_VECTOR_OPERATOR(-)
TQ_VECTOR_OPERATOR(*)
TQ_VECTOR_OPERATOR(/)
TQ_VECTOR_OPERATOR(&)
TQ_VECTOR_OPERATOR(|)
TQ_VECTOR_OPERATOR(^)
TQ_VECTOR_OPERATOR(<<)
TQ_VECTOR_OPERATOR(>>)
#undef TQ_VECTOR_OPERATOR

template <typename T, int N>
inline vec<T, N> operator-(vec<T, N> a) {
  for (int i = 0; i < N; i++) a[i] = -a[i];
  return a;
}

template <typename T, int N>
inline T dot(vec<T, N> a, vec<T, N> b) {
  T sum = a[0] * b[0];
  for (int i = 1; i < N; i++) sum += a[i] * b[i];
  return sum;
}

#define TQ_VECTORS(T, name)  \
  typedef vec<T, 2> name##2; \
  typedef vec<T, 3> name##3; \
  typedef vec<T, 4> name##4;
TQ_VECTORS(float, float)
TQ_VECTORS(__half, half)
TQ_VECTORS(__nv_bfloat16, bfloat)
TQ_VECTORS(signed char, char)
TQ_VECTORS(uchar, uchar)
TQ_VECTORS(short, short)
TQ_VECTORS(ushort, ushort)
TQ_VECTORS(int, int)
TQ_VECTORS(uint, uint)
TQ_VECTORS(long, long)
TQ_VECTORS(ulong, ulong)
#undef TQ_VECTORS

}  // namespace metal
