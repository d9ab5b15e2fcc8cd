// The part of the Metal Shading Language that bodies use, for a C++17 compiler on a CPU.
//
// No header of the C++ library: it would bring ::exp(double) and others that a body must not find.
// Every load and store of the body is seen by the runner, through the calls that -fsanitize=thread inserts.
#pragma once
#include "interface.h"
#include "msl_atomic.h"
#include "msl_geometry.h"
#include "msl_integer.h"
#include "msl_math.h"
#include "msl_simd.h"
#include "msl_vectors.h"

using namespace metal;

// Helpers that MLX puts before every body.
template <typename T, typename U>
inline T ceildiv(T n, U m) {
  return (n + m - 1) / m;
}
template <typename Index = int64_t>
inline Index elem_to_loc(Index elem, const int* shape, const int64_t* strides, int ndim) {
  Index at = 0;
  for (int i = ndim - 1; i >= 0 && elem > 0; --i) {
    at += (elem % shape[i]) * Index(strides[i]);
    elem /= shape[i];
  }
  return at;
}

// The address spaces. Declarations of threadgroup arrays have been rewritten to TQ_THREADGROUP; pointers are left.
#define device
#define constant
#define thread
#define threadgroup
#define TQ_THREADGROUP(index, name, element)                                            \
  tq_type_##name& name = *(tq_type_##name*)tq_threadgroup_array(                         \
      index, #name, sizeof(tq_type_##name), element, tq_site{__builtin_FILE(), __builtin_LINE(), 0})
