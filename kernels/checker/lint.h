// Metal's vocabulary on top of clang's "C++ for OpenCL", for the lint: declarations only, nothing is run.
//
// Address spaces, types and overloads are as strict as Metal's or a little stricter. Not here: vectors of bfloats beyond
// their names, textures, simdgroup matrices.
#pragma OPENCL EXTENSION cl_khr_fp16 : enable

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef half float16_t;

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define M_PI_F 3.14159265358979323846f
#define M_LN2_F 0.69314718055994530942f
#define M_LOG2E_F 1.44269504088896340736f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f

// A bfloat becomes a float by itself; a float becomes a bfloat only where the text says so, as in Metal. A trait of
// clang: `c ? T(0) : x` of bfloats is a float here, for x lies in an address space; write T(...) around it.
struct bfloat {
  ushort bits;
  bfloat() = default;
  bfloat(const bfloat&) = default;
  bfloat(const __constant bfloat&);
  explicit bfloat(float);
  explicit bfloat(half);
  explicit bfloat(int);
  explicit bfloat(uint);
  bfloat& operator=(const bfloat&) = default;
  operator float() const;
  operator float() const __constant;
};
typedef bfloat bfloat16_t;
bfloat operator-(bfloat);
#define TQ_ARITHMETIC(op)              \
  bfloat operator op(bfloat, bfloat);  \
  bfloat operator op(bfloat, int);     \
  bfloat operator op(bfloat, uint);    \
  bfloat operator op(int, bfloat);     \
  bfloat operator op(uint, bfloat);    \
  float operator op(bfloat, float);    \
  float operator op(float, bfloat);    \
  bfloat& operator op##=(bfloat&, bfloat);
TQ_ARITHMETIC(+)
TQ_ARITHMETIC(-)
TQ_ARITHMETIC(*)
TQ_ARITHMETIC(/)
#undef TQ_ARITHMETIC

namespace metal {

// Vectors; `float4(...)` is a cast in OpenCL, so that a macro must make it a call.
template <typename T, int N>
using vec = T __attribute__((ext_vector_type(N)));
template <typename V>
struct tq_size {
  enum { value = 1 };
};
template <typename T, int N>
struct tq_size<T __attribute__((ext_vector_type(N)))> {
  enum { value = N };
};
template <typename V, typename... Parts>
V tq_vector(Parts...) {
  constexpr int given = (tq_size<Parts>::value + ...);
  static_assert(given == tq_size<V>::value || (sizeof...(Parts) == 1 && given == 1),
                "a vector is made of all its elements, or of one for all");
  return V();
}
#define TQ_VECTORS(T, name)  \
  typedef vec<T, 2> name##2; \
  typedef vec<T, 3> name##3; \
  typedef vec<T, 4> name##4;
TQ_VECTORS(float, float)
TQ_VECTORS(half, half)
TQ_VECTORS(char, char)
TQ_VECTORS(uchar, uchar)
TQ_VECTORS(short, short)
TQ_VECTORS(ushort, ushort)
TQ_VECTORS(int, int)
TQ_VECTORS(uint, uint)
TQ_VECTORS(long, long)
TQ_VECTORS(ulong, ulong)
#undef TQ_VECTORS
struct bfloat2;
struct bfloat3;
struct bfloat4;

template <typename To, typename From>
To as_type(From) {
  static_assert(sizeof(To) == sizeof(From), "as_type: types of different sizes");
  return To();
}

template <typename T>
struct numeric_limits {
  static constexpr T max();
  static constexpr T min();
  static constexpr T lowest();
  static constexpr T infinity();
  static constexpr T quiet_NaN();
  static constexpr T epsilon();
};

#define TQ_FLOAT_VECTORS(M) M(float2) M(float3) M(float4) M(half2) M(half3) M(half4)
#define TQ_FLOATS(M) M(float) M(half) M(bfloat)
#define TQ_SMALL_INTEGERS(M) M(char) M(uchar) M(short) M(ushort) M(int) M(uint)
#define TQ_INTEGERS(M) TQ_SMALL_INTEGERS(M) M(long) M(ulong)

#define TQ_MATHS(T)                                                                                            \
  T exp(T); T exp2(T); T exp10(T); T log(T); T log2(T); T log10(T); T sqrt(T); T rsqrt(T); T sin(T); T cos(T); \
  T tan(T); T asin(T); T acos(T); T atan(T); T sinh(T); T cosh(T); T tanh(T); T floor(T); T ceil(T);           \
  T round(T); T rint(T); T trunc(T); T fabs(T); T fract(T); T saturate(T); T sign(T);                          \
  T pow(T, T); T powr(T, T); T atan2(T, T); T fmod(T, T); T fmin(T, T); T fmax(T, T); T copysign(T, T);        \
  T fma(T, T, T); T step(T, T); T mix(T, T, T);                                                                \
  T acosh(T); T asinh(T); T atanh(T); T cospi(T); T sinpi(T); T tanpi(T); T divide(T, T); T fdim(T, T);        \
  T nextafter(T, T); T smoothstep(T, T, T); T modf(T, __private T&); T sincos(T, __private T&);                \
  T fmin3(T, T, T); T fmax3(T, T, T); T fmedian3(T, T, T);
#define TQ_TESTS(T) bool isnormal(T); bool isordered(T, T); bool isunordered(T, T); int ilogb(T); bool isnan(T); bool isinf(T); bool isfinite(T); bool signbit(T); T ldexp(T, int);
#define TQ_ORDER(T) T min3(T, T, T); T max3(T, T, T); T median3(T, T, T); T min(T, T); T max(T, T); T clamp(T, T, T); T abs(T); T select(T, T, bool);
#define TQ_BITS(T) \
  T popcount(T); T clz(T); T ctz(T); T reverse_bits(T); T rotate(T, T); T mulhi(T, T); \
  T extract_bits(T, uint, uint); T insert_bits(T, T, uint, uint);                      \
  T absdiff(T, T); T addsat(T, T); T subsat(T, T); T hadd(T, T); T rhadd(T, T);        \
  T madhi(T, T, T); T madsat(T, T, T);
#define TQ_24(T) T mul24(T, T); T mad24(T, T, T);
TQ_FLOATS(TQ_MATHS)
TQ_FLOAT_VECTORS(TQ_MATHS)
TQ_FLOATS(TQ_TESTS)
TQ_FLOATS(TQ_ORDER)
TQ_FLOAT_VECTORS(TQ_ORDER)
TQ_INTEGERS(TQ_ORDER)
TQ_INTEGERS(TQ_BITS)
#define TQ_INTEGER_VECTORS(M) \
  M(int2) M(int3) M(int4) M(uint2) M(uint3) M(uint4) M(short2) M(short3) M(short4) M(ushort2) M(ushort3) M(ushort4)
TQ_INTEGER_VECTORS(TQ_ORDER)
TQ_INTEGER_VECTORS(TQ_BITS)
TQ_24(int)
TQ_24(uint)
float frexp(float, __private int&);
half frexp(half, __private int&);
#define TQ_GEOMETRY(T, V)                                                                            \
  T dot(V, V); T length(V); T length_squared(V); T distance(V, V); T distance_squared(V, V);         \
  V normalize(V); V faceforward(V, V, V); V reflect(V, V); V refract(V, V, T); V mix(V, V, T);       \
  V clamp(V, T, T); V smoothstep(T, T, V);
TQ_GEOMETRY(float, float2)
TQ_GEOMETRY(float, float3)
TQ_GEOMETRY(float, float4)
TQ_GEOMETRY(half, half2)
TQ_GEOMETRY(half, half3)
TQ_GEOMETRY(half, half4)
float3 cross(float3, float3);
half3 cross(half3, half3);
template <typename T, typename U>
T ceildiv(T, U);
#define TQ_QUICK(T)                                                                             \
  T exp(T); T exp2(T); T exp10(T); T log(T); T log2(T); T log10(T); T sqrt(T); T rsqrt(T);      \
  T sin(T); T cos(T); T tan(T); T floor(T); T ceil(T); T round(T); T rint(T); T trunc(T);       \
  T fabs(T); T fract(T); T saturate(T); T sign(T); T tanh(T); T divide(T, T);                   \
  T asin(T); T acos(T); T atan(T); T sinh(T); T cosh(T); T asinh(T); T acosh(T); T atanh(T);    \
  T sinpi(T); T cospi(T); T tanpi(T); T pow(T, T); T powr(T, T); T atan2(T, T); T fmod(T, T);   \
  T fmin(T, T); T fmax(T, T); T fdim(T, T); T copysign(T, T); T fma(T, T, T);                   \
  T clamp(T, T, T); T sincos(T, __private T&);
namespace fast {
TQ_QUICK(float)
}
namespace precise {
TQ_QUICK(float)
}

enum class mem_flags { mem_none, mem_device, mem_threadgroup, mem_device_and_threadgroup };
mem_flags operator|(mem_flags, mem_flags);
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

// No 64-bit integers and no booleans: Metal's simdgroup operations don't take them.
#define TQ_SHUFFLES(T)                                                                                          \
  T simd_shuffle(T, ushort); T simd_shuffle_xor(T, ushort); T simd_shuffle_up(T, ushort);                       \
  T simd_shuffle_down(T, ushort); T simd_broadcast(T, ushort); T simd_broadcast_first(T);                       \
  T simd_sum(T); T simd_product(T); T simd_max(T); T simd_min(T);                                               \
  T simd_prefix_inclusive_sum(T); T simd_prefix_exclusive_sum(T);
#define TQ_LOGIC(T) T simd_and(T); T simd_or(T); T simd_xor(T);
TQ_FLOATS(TQ_SHUFFLES)
TQ_FLOAT_VECTORS(TQ_SHUFFLES)
TQ_SMALL_INTEGERS(TQ_SHUFFLES)
TQ_SMALL_INTEGERS(TQ_LOGIC)
struct simd_vote {
  typedef ulong vote_t;
  explicit operator vote_t() const;
  bool all() const;
  bool any() const;
};
simd_vote simd_ballot(bool);
bool simd_any(bool);
bool simd_all(bool);
bool simd_is_first();

template <typename T>
struct atomic {
  T value;
};
template struct atomic<int>;  // now, so that parameters may point to it
template struct atomic<uint>;
template struct atomic<float>;
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
enum memory_order { memory_order_relaxed };
#define TQ_FLOAT_ATOMICS(space)                                                                                      \
  float atomic_fetch_add_explicit(space atomic_float*, float, memory_order);                                         \
  float atomic_fetch_sub_explicit(space atomic_float*, float, memory_order);                                         \
  float atomic_exchange_explicit(space atomic_float*, float, memory_order);                                          \
  float atomic_load_explicit(const space atomic_float*, memory_order);                                               \
  void atomic_store_explicit(space atomic_float*, float, memory_order);
#define TQ_ATOMICS(A, T, space)                                                                                 \
  T atomic_fetch_add_explicit(space A*, T, memory_order); T atomic_fetch_sub_explicit(space A*, T, memory_order); \
  T atomic_fetch_max_explicit(space A*, T, memory_order); T atomic_fetch_min_explicit(space A*, T, memory_order); \
  T atomic_fetch_and_explicit(space A*, T, memory_order); T atomic_fetch_or_explicit(space A*, T, memory_order);  \
  T atomic_fetch_xor_explicit(space A*, T, memory_order); T atomic_exchange_explicit(space A*, T, memory_order);  \
  T atomic_load_explicit(const space A*, memory_order); void atomic_store_explicit(space A*, T, memory_order);
TQ_ATOMICS(atomic_int, int, __global)
TQ_ATOMICS(atomic_int, int, __local)
TQ_ATOMICS(atomic_uint, uint, __global)
TQ_ATOMICS(atomic_uint, uint, __local)
TQ_FLOAT_ATOMICS(__global)
TQ_FLOAT_ATOMICS(__local)
#define TQ_EXCHANGES(A, T, space) \
  bool atomic_compare_exchange_weak_explicit(space A*, __private T*, T, memory_order, memory_order);
TQ_EXCHANGES(atomic_int, int, __global)
TQ_EXCHANGES(atomic_uint, uint, __global)
TQ_EXCHANGES(atomic_float, float, __global)
TQ_EXCHANGES(atomic_int, int, __local)
TQ_EXCHANGES(atomic_uint, uint, __local)

#define TQ_MAKERS(name)                                                   \
  template <typename... P> name##2 tq_##name##2(P... p) { return tq_vector<name##2>(p...); } \
  template <typename... P> name##3 tq_##name##3(P... p) { return tq_vector<name##3>(p...); } \
  template <typename... P> name##4 tq_##name##4(P... p) { return tq_vector<name##4>(p...); }
TQ_MAKERS(float)
TQ_MAKERS(half)
TQ_MAKERS(char)
TQ_MAKERS(uchar)
TQ_MAKERS(short)
TQ_MAKERS(ushort)
TQ_MAKERS(int)
TQ_MAKERS(uint)
TQ_MAKERS(long)
TQ_MAKERS(ulong)

}  // namespace metal

#define TQ_USE_MAKERS(name) using metal::tq_##name##2; using metal::tq_##name##3; using metal::tq_##name##4;
#define TQ_ALL_MAKERS                                                                                    \
  TQ_USE_MAKERS(float) TQ_USE_MAKERS(half) TQ_USE_MAKERS(char) TQ_USE_MAKERS(uchar) TQ_USE_MAKERS(short) \
  TQ_USE_MAKERS(ushort) TQ_USE_MAKERS(int) TQ_USE_MAKERS(uint) TQ_USE_MAKERS(long) TQ_USE_MAKERS(ulong)
#define float2(...) tq_float2(__VA_ARGS__)
#define float3(...) tq_float3(__VA_ARGS__)
#define float4(...) tq_float4(__VA_ARGS__)
#define half2(...) tq_half2(__VA_ARGS__)
#define half3(...) tq_half3(__VA_ARGS__)
#define half4(...) tq_half4(__VA_ARGS__)
#define char2(...) tq_char2(__VA_ARGS__)
#define char4(...) tq_char4(__VA_ARGS__)
#define uchar2(...) tq_uchar2(__VA_ARGS__)
#define uchar4(...) tq_uchar4(__VA_ARGS__)
#define short2(...) tq_short2(__VA_ARGS__)
#define short4(...) tq_short4(__VA_ARGS__)
#define ushort2(...) tq_ushort2(__VA_ARGS__)
#define ushort4(...) tq_ushort4(__VA_ARGS__)
#define int2(...) tq_int2(__VA_ARGS__)
#define int3(...) tq_int3(__VA_ARGS__)
#define int4(...) tq_int4(__VA_ARGS__)
#define uint2(...) tq_uint2(__VA_ARGS__)
#define uint3(...) tq_uint3(__VA_ARGS__)
#define uint4(...) tq_uint4(__VA_ARGS__)
#define long2(...) tq_long2(__VA_ARGS__)
#define ulong2(...) tq_ulong2(__VA_ARGS__)

// What tq's own bodies don't use, and the names that CUDA knows, names.h, leave out.
#define TQ_OTHER_NAMES                                                                                                \
  using metal::acosh; using metal::asinh; using metal::atanh; using metal::cospi; using metal::sinpi;                 \
  using metal::tanpi; using metal::divide; using metal::fdim; using metal::nextafter; using metal::smoothstep;        \
  using metal::modf; using metal::sincos; using metal::fmin3; using metal::fmax3; using metal::fmedian3;              \
  using metal::min3; using metal::max3; using metal::median3; using metal::ilogb; using metal::isnormal;              \
  using metal::isordered; using metal::isunordered; using metal::absdiff; using metal::addsat; using metal::subsat;   \
  using metal::hadd; using metal::rhadd; using metal::madhi; using metal::madsat; using metal::mul24;                 \
  using metal::mad24; using metal::length; using metal::length_squared; using metal::distance;                        \
  using metal::distance_squared; using metal::normalize; using metal::faceforward; using metal::reflect;              \
  using metal::refract; using metal::cross; using metal::atomic; using metal::atomic_float;                           \
  using metal::atomic_compare_exchange_weak_explicit;

#define METAL_FUNC inline
#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private
