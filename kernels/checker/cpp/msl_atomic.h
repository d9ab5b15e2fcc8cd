// Atomic operations. GPU threads change over only where they wait, so plain ones do; the runner is told.
#pragma once
#include "interface.h"
#include "msl_types.h"

namespace metal {
enum memory_order { memory_order_relaxed };
template <class T>
struct atomic {
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;

#define TQ_ATOMIC(name, result)                                                  \
  template <class T, class U>                                                    \
  TQ_OPAQUE T atomic_##name##_explicit(atomic<T>* at, U operand, memory_order) { \
    tq_atomic(at, sizeof(T), tq_updates, __builtin_return_address(0));           \
    T old = at->value, x = T(operand);                                           \
    (void)x;                                                                     \
    at->value = result;                                                          \
    return old;                                                                  \
  }
TQ_ATOMIC(fetch_add, T(old + x))
TQ_ATOMIC(fetch_sub, T(old - x))
TQ_ATOMIC(fetch_max, (old > x ? old : x))
TQ_ATOMIC(fetch_min, (old < x ? old : x))
TQ_ATOMIC(fetch_and, T(old & x))
TQ_ATOMIC(fetch_or, T(old | x))
TQ_ATOMIC(fetch_xor, T(old ^ x))
TQ_ATOMIC(exchange, x)
#undef TQ_ATOMIC

template <class T>
TQ_OPAQUE T atomic_load_explicit(const atomic<T>* at, memory_order) {
  tq_atomic(at, sizeof(T), tq_reads, __builtin_return_address(0));
  return at->value;
}
template <class T, class U>
TQ_OPAQUE void atomic_store_explicit(atomic<T>* at, U x, memory_order) {
  tq_atomic(at, sizeof(T), tq_writes, __builtin_return_address(0));
  at->value = T(x);
}
template <class T>
TQ_OPAQUE bool atomic_compare_exchange_weak_explicit(
    atomic<T>* at, T* expected, T desired, memory_order, memory_order) {
  tq_atomic(at, sizeof(T), tq_updates, __builtin_return_address(0));
  if (at->value != *expected) {
    *expected = at->value;
    return false;
  }
  at->value = desired;
  return true;
}
}  // namespace metal
