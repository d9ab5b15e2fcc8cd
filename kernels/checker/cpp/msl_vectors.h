// Vectors of two, three and four elements, without swizzles of several members.
#pragma once
#include "msl_types.h"

namespace metal {
template <class T, int N>
struct vec;

template <class T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  vec() = default;
  constexpr vec(T a) : x(a), y(a) {}
  constexpr vec(T a, T b) : x(a), y(b) {}
  template <class U>
  explicit constexpr vec(vec<U, 2> o) : x(T(o.x)), y(T(o.y)) {}
  TQ_INLINE T& operator[](uint i) { return (&x)[i]; }
  TQ_INLINE const T& operator[](uint i) const { return (&x)[i]; }
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
  T x, y, z;
  vec() = default;
  constexpr vec(T a) : x(a), y(a), z(a) {}
  constexpr vec(T a, T b, T c) : x(a), y(b), z(c) {}
  constexpr vec(vec<T, 2> a, T c) : x(a.x), y(a.y), z(c) {}
  template <class U>
  explicit constexpr vec(vec<U, 3> o) : x(T(o.x)), y(T(o.y)), z(T(o.z)) {}
  TQ_INLINE T& operator[](uint i) { return (&x)[i]; }
  TQ_INLINE const T& operator[](uint i) const { return (&x)[i]; }
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
  vec() = default;
  constexpr vec(T a) : x(a), y(a), z(a), w(a) {}
  constexpr vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  constexpr vec(vec<T, 2> a, vec<T, 2> b) : x(a.x), y(a.y), z(b.x), w(b.y) {}
  constexpr vec(vec<T, 3> a, T d) : x(a.x), y(a.y), z(a.z), w(d) {}
  template <class U>
  explicit constexpr vec(vec<U, 4> o) : x(T(o.x)), y(T(o.y)), z(T(o.z)), w(T(o.w)) {}
  TQ_INLINE T& operator[](uint i) { return (&x)[i]; }
  TQ_INLINE const T& operator[](uint i) const { return (&x)[i]; }
};

// The scalar side of an operator takes no part in finding T, so that `float4 * int` works.
template <class T>
struct itself {
  typedef T type;
};

#define TQ_VECTOR(o)                                                        \
  template <class T, int N>                                                 \
  TQ_INLINE vec<T, N> operator o(vec<T, N> a, vec<T, N> b) {                \
    for (int i = 0; i < N; i++) a[i] = T(a[i] o b[i]);                      \
    return a;                                                               \
  }                                                                         \
  template <class T, int N>                                                 \
  TQ_INLINE vec<T, N> operator o(vec<T, N> a, typename itself<T>::type b) { \
    for (int i = 0; i < N; i++) a[i] = T(a[i] o b);                         \
    return a;                                                               \
  }                                                                         \
  template <class T, int N>                                                 \
  TQ_INLINE vec<T, N> operator o(typename itself<T>::type a, vec<T, N> b) { \
    for (int i = 0; i < N; i++) b[i] = T(a o b[i]);                         \
    return b;                                                               \
  }                                                                         \
  template <class T, int N, class U>                                        \
  TQ_INLINE vec<T, N>& operator o##=(vec<T, N>& a, U b) {                   \
    return a = a o b;                                                       \
  }
TQ_VECTOR(+)
TQ_VECTOR(-)
TQ_VECTOR(*)
TQ_VECTOR(/)
TQ_VECTOR(%)
TQ_VECTOR(&)
TQ_VECTOR(|)
TQ_VECTOR(^)
TQ_VECTOR(<<)
TQ_VECTOR(>>)
#undef TQ_VECTOR

template <class T, int N>
TQ_INLINE vec<T, N> operator-(vec<T, N> a) {
  for (int i = 0; i < N; i++) a[i] = -a[i];
  return a;
}

#define TQ_COMPARISON(o)                                                          \
  template <class T, int N>                                                        \
  TQ_INLINE vec<bool, N> operator o(vec<T, N> a, vec<T, N> b) {                    \
    vec<bool, N> result;                                                           \
    for (int i = 0; i < N; i++) result[i] = a[i] o b[i];                           \
    return result;                                                                 \
  }                                                                                \
  template <class T, int N>                                                        \
  TQ_INLINE vec<bool, N> operator o(vec<T, N> a, typename itself<T>::type b) {     \
    return a o vec<T, N>(b);                                                       \
  }
TQ_COMPARISON(==)
TQ_COMPARISON(!=)
TQ_COMPARISON(<)
TQ_COMPARISON(<=)
TQ_COMPARISON(>)
TQ_COMPARISON(>=)
#undef TQ_COMPARISON

template <int N>
TQ_INLINE bool all(vec<bool, N> a) {
  for (int i = 0; i < N; i++)
    if (!a[i]) return false;
  return true;
}
template <int N>
TQ_INLINE bool any(vec<bool, N> a) {
  for (int i = 0; i < N; i++)
    if (a[i]) return true;
  return false;
}

// A function of scalars for vectors, element by element.
#define TQ_EACH_1(name)                                  \
  template <class T, int N>                              \
  TQ_INLINE vec<T, N> name(vec<T, N> a) {                \
    for (int i = 0; i < N; i++) a[i] = name(a[i]);       \
    return a;                                            \
  }
#define TQ_EACH_2(name)                                  \
  template <class T, int N>                              \
  TQ_INLINE vec<T, N> name(vec<T, N> a, vec<T, N> b) {   \
    for (int i = 0; i < N; i++) a[i] = name(a[i], b[i]); \
    return a;                                            \
  }
#define TQ_EACH_3(name)                                               \
  template <class T, int N>                                           \
  TQ_INLINE vec<T, N> name(vec<T, N> a, vec<T, N> b, vec<T, N> c) {   \
    for (int i = 0; i < N; i++) a[i] = name(a[i], b[i], c[i]);        \
    return a;                                                         \
  }

#define TQ_NAMES(t)        \
  typedef vec<t, 2> t##2;  \
  typedef vec<t, 3> t##3;  \
  typedef vec<t, 4> t##4;
TQ_NAMES(float)
TQ_NAMES(half)
TQ_NAMES(bfloat)
TQ_NAMES(char)
TQ_NAMES(uchar)
TQ_NAMES(short)
TQ_NAMES(ushort)
TQ_NAMES(int)
TQ_NAMES(uint)
TQ_NAMES(long)
TQ_NAMES(ulong)
TQ_NAMES(bool)
#undef TQ_NAMES
}  // namespace metal
