// Metal's names, as a body uses them without "metal::", for compilers that aren't Metal's.
//
// Declared one by one in a scope around a kernel they hide the compiler's own functions of the same names, with which a
// "using namespace metal" would be ambiguous.
#define TQ_METAL_NAMES                                                                                               \
  namespace fast = metal::fast;                                                                                      \
  namespace precise = metal::precise;                                                                                \
  using metal::as_type; using metal::vec; using metal::dot; using metal::numeric_limits;                             \
  using metal::float2; using metal::float3; using metal::float4;                                                     \
  using metal::half2; using metal::half3; using metal::half4;                                                        \
  using metal::bfloat2; using metal::bfloat3; using metal::bfloat4;                                                  \
  using metal::char2; using metal::char3; using metal::char4;                                                        \
  using metal::uchar2; using metal::uchar3; using metal::uchar4;                                                     \
  using metal::short2; using metal::short3; using metal::short4;                                                     \
  using metal::ushort2; using metal::ushort3; using metal::ushort4;                                                  \
  using metal::int2; using metal::int3; using metal::int4;                                                           \
  using metal::uint2; using metal::uint3; using metal::uint4;                                                        \
  using metal::long2; using metal::long3; using metal::long4;                                                        \
  using metal::ulong2; using metal::ulong3; using metal::ulong4;                                                     \
  using metal::exp; using metal::exp2; using metal::exp10; using metal::log; using metal::log2; using metal::log10;  \
  using metal::sqrt; using metal::rsqrt; using metal::sin; using metal::cos; using metal::tan;                       \
  using metal::asin; using metal::acos; using metal::atan; using metal::sinh; using metal::cosh; using metal::tanh;  \
  using metal::floor; using metal::ceil; using metal::round; using metal::rint; using metal::trunc;                  \
  using metal::fabs; using metal::fract; using metal::saturate; using metal::sign;                                   \
  using metal::pow; using metal::powr; using metal::atan2; using metal::fmod; using metal::fmin; using metal::fmax;  \
  using metal::copysign; using metal::ldexp; using metal::frexp; using metal::fma;                                   \
  using metal::isnan; using metal::isinf; using metal::isfinite; using metal::signbit;                               \
  using metal::min; using metal::max; using metal::clamp; using metal::abs; using metal::mix; using metal::select;   \
  using metal::step; using metal::ceildiv; using metal::popcount; using metal::clz; using metal::ctz;                \
  using metal::reverse_bits; using metal::rotate; using metal::mulhi;                                                \
  using metal::extract_bits; using metal::insert_bits;                                                               \
  using metal::mem_flags; using metal::threadgroup_barrier; using metal::simdgroup_barrier;                          \
  using metal::simd_shuffle; using metal::simd_shuffle_xor; using metal::simd_shuffle_up;                            \
  using metal::simd_shuffle_down; using metal::simd_broadcast; using metal::simd_broadcast_first;                    \
  using metal::simd_sum; using metal::simd_product; using metal::simd_max; using metal::simd_min;                    \
  using metal::simd_and; using metal::simd_or; using metal::simd_xor;                                                \
  using metal::simd_prefix_inclusive_sum; using metal::simd_prefix_exclusive_sum;                                    \
  using metal::simd_vote; using metal::simd_ballot; using metal::simd_any; using metal::simd_all;                    \
  using metal::simd_is_first; using metal::atomic_int; using metal::atomic_uint;                                     \
  using metal::memory_order; using metal::memory_order_relaxed;                                                      \
  using metal::atomic_fetch_add_explicit; using metal::atomic_fetch_sub_explicit;                                    \
  using metal::atomic_fetch_max_explicit; using metal::atomic_fetch_min_explicit;                                    \
  using metal::atomic_fetch_and_explicit; using metal::atomic_fetch_or_explicit;                                     \
  using metal::atomic_fetch_xor_explicit; using metal::atomic_exchange_explicit;                                     \
  using metal::atomic_load_explicit; using metal::atomic_store_explicit;
