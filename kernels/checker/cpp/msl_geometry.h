// The functions of vectors as such of the Metal Shading Language.
#pragma once
#include "msl_math.h"

namespace metal {
template <class T, int N>
TQ_INLINE T dot(vec<T, N> a, vec<T, N> b) {
  T sum = a[0] * b[0];
  for (int i = 1; i < N; i++) sum += a[i] * b[i];
  return sum;
}
template <class T>
TQ_INLINE vec<T, 3> cross(vec<T, 3> a, vec<T, 3> b) {
  return vec<T, 3>(T(a.y * b.z - a.z * b.y), T(a.z * b.x - a.x * b.z), T(a.x * b.y - a.y * b.x));
}
template <class T, int N>
TQ_INLINE T length_squared(vec<T, N> a) {
  return dot(a, a);
}
template <class T, int N>
TQ_INLINE T length(vec<T, N> a) {
  return sqrt(dot(a, a));
}
template <class T, int N>
TQ_INLINE T distance_squared(vec<T, N> a, vec<T, N> b) {
  return length_squared(a - b);
}
template <class T, int N>
TQ_INLINE T distance(vec<T, N> a, vec<T, N> b) {
  return length(a - b);
}
template <class T, int N>
TQ_INLINE vec<T, N> normalize(vec<T, N> a) {
  return a * rsqrt(dot(a, a));
}
template <class T, int N>
TQ_INLINE vec<T, N> faceforward(vec<T, N> n, vec<T, N> incident, vec<T, N> reference) {
  return dot(reference, incident) < T(0) ? n : -n;
}
template <class T, int N>
TQ_INLINE vec<T, N> reflect(vec<T, N> incident, vec<T, N> n) {
  return incident - n * T(T(2) * dot(n, incident));
}
template <class T, int N>
TQ_INLINE vec<T, N> refract(vec<T, N> incident, vec<T, N> n, typename itself<T>::type eta) {
  T cosine = dot(n, incident), rest = T(1) - eta * eta * (T(1) - cosine * cosine);
  return rest < T(0) ? vec<T, N>(T(0)) : incident * eta - n * T(eta * cosine + sqrt(rest));
}
}  // namespace metal
