// Barriers, operations of a simdgroup (a warp; all 32 lanes take part) and atomics of Metal for CUDA.

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_device_and_threadgroup = 3 };

inline mem_flags operator|(mem_flags a, mem_flags b) {
  return static_cast<mem_flags>(static_cast<int>(a) | static_cast<int>(b));
}
// Both order memory of either kind within the threads that they join.
inline void threadgroup_barrier(mem_flags) { __syncthreads(); }
inline void simdgroup_barrier(mem_flags) { __syncwarp(); }

#define TQ_ALL_LANES 0xffffffffu
#define TQ_SHUFFLE(name, builtin)                                            \
  template <typename T>                                                      \
  inline T name(T value, ushort n) {                                         \
    return T(builtin(TQ_ALL_LANES, value, n));                               \
  }                                                                          \
  template <typename T, int N>                                               \
  inline vec<T, N> name(vec<T, N> value, ushort n) {                         \
    for (int i = 0; i < N; i++) value[i] = name(value[i], n);                \
    return value;                                                            \
  }
TQ_SHUFFLE(simd_shuffle, __shfl_sync)
TQ_SHUFFLE(simd_broadcast, __shfl_sync)
TQ_SHUFFLE(simd_shuffle_xor, __shfl_xor_sync)
TQ_SHUFFLE(simd_shuffle_up, __shfl_up_sync)
TQ_SHUFFLE(simd_shuffle_down, __shfl_down_sync)
#undef TQ_SHUFFLE

template <typename T>
inline T simd_broadcast_first(T value) {
  return simd_broadcast(value, 0);
}

#define TQ_REDUCE(name, joined)                                \
  template <typename T>                                        \
  inline T name(T a) {                                         \
    for (ushort step = 16; step > 0; step /= 2) {              \
      T b = simd_shuffle_xor(a, step);                         \
      a = joined;                                              \
    }                                                          \
    return a;                                                  \
  }
TQ_REDUCE(simd_sum, T(a + b))
TQ_REDUCE(simd_product, T(a * b))
TQ_REDUCE(simd_max, metal::max(a, b))
TQ_REDUCE(simd_min, metal::min(a, b))
TQ_REDUCE(simd_and, T(a & b))
TQ_REDUCE(simd_or, T(a | b))
TQ_REDUCE(simd_xor, T(a ^ b))
#undef TQ_REDUCE

inline uint lane_index() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}

template <typename T>
inline T simd_prefix_inclusive_sum(T a) {
  for (uint step = 1; step < 32; step *= 2) {
    T b = simd_shuffle_up(a, ushort(step));
    if (lane_index() >= step) a = T(a + b);
  }
  return a;
}
template <typename T>
inline T simd_prefix_exclusive_sum(T a) {
  T before = simd_shuffle_up(simd_prefix_inclusive_sum(a), 1);
  return lane_index() == 0 ? T(0) : before;
}

struct simd_vote {
  typedef ulong vote_t;
  vote_t lanes;
  explicit operator vote_t() const { return lanes; }
  bool all() const { return lanes == TQ_ALL_LANES; }
  bool any() const { return lanes != 0; }
};
inline simd_vote simd_ballot(bool here) { return simd_vote{__ballot_sync(TQ_ALL_LANES, here)}; }
inline bool simd_any(bool here) { return __any_sync(TQ_ALL_LANES, here); }
inline bool simd_all(bool here) { return __all_sync(TQ_ALL_LANES, here); }
inline bool simd_is_first() { return lane_index() == 0; }

// Atomics are plain integers here, which CUDA's functions take by address.
typedef int atomic_int;
typedef uint atomic_uint;
enum memory_order { memory_order_relaxed = 0 };

#define TQ_ATOMIC(name, builtin)                                \
  template <typename T, typename U>                             \
  inline T name(T* at, U value, memory_order) {                 \
    return builtin(at, T(value));                               \
  }
TQ_ATOMIC(atomic_fetch_add_explicit, ::atomicAdd)
TQ_ATOMIC(atomic_fetch_sub_explicit, ::atomicSub)
TQ_ATOMIC(atomic_fetch_max_explicit, ::atomicMax)
TQ_ATOMIC(atomic_fetch_min_explicit, ::atomicMin)
TQ_ATOMIC(atomic_fetch_and_explicit, ::atomicAnd)
TQ_ATOMIC(atomic_fetch_or_explicit, ::atomicOr)
TQ_ATOMIC(atomic_fetch_xor_explicit, ::atomicXor)
TQ_ATOMIC(atomic_exchange_explicit, ::atomicExch)
#undef TQ_ATOMIC
template <typename T>
inline T atomic_load_explicit(T* at, memory_order) {
  return *static_cast<volatile T*>(at);
}
template <typename T, typename U>
inline void atomic_store_explicit(T* at, U value, memory_order) {
  *static_cast<volatile T*>(at) = T(value);
}

}  // namespace metal
