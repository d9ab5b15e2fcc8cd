// The calls that the compiler puts into a body: -fsanitize=thread before every load and store, and the undefined-
// behaviour sanitizer where an index of a local array, a shift or a division is wrong. Neither library is linked.
#include <stdlib.h>
#include <string.h>

#include <string>

#include "memory.h"
#include "report.h"
#include "schedule.h"

#define FROM __builtin_return_address(0)
#define HOOKS(n)                                                                   \
  void __tsan_read##n(void* p) { access(p, n, false, false, FROM); }               \
  void __tsan_write##n(void* p) { access(p, n, true, false, FROM); }               \
  void __tsan_unaligned_read##n(void* p) { access(p, n, false, false, FROM); }     \
  void __tsan_unaligned_write##n(void* p) { access(p, n, true, false, FROM); }     \
  void __tsan_volatile_read##n(void* p) { access(p, n, false, false, FROM); }      \
  void __tsan_volatile_write##n(void* p) { access(p, n, true, false, FROM); }
#define MEMORY(prefix)                                            \
  void* prefix##memcpy(void* to, const void* from, size_t n) {    \
    access(from, n, false, false, FROM);                          \
    access(to, n, true, false, FROM);                             \
    return memcpy(to, from, n);                                   \
  }                                                               \
  void* prefix##memmove(void* to, const void* from, size_t n) {   \
    access(from, n, false, false, FROM);                          \
    access(to, n, true, false, FROM);                             \
    return memmove(to, from, n);                                  \
  }                                                               \
  void* prefix##memset(void* to, int value, size_t n) {           \
    access(to, n, true, false, FROM);                             \
    return memset(to, value, n);                                  \
  }

namespace {
struct Place {  // as the compiler lays it out
  const char* file;
  uint32_t line, column;
};
struct Type {
  uint16_t kind, info;  // of an integer: log2 of its bits, times two
  char name[1];
};
struct OnIndex {
  Place at;
  const Type *array, *index;
};
struct OnShift {
  Place at;
  const Type *shifted, *by;
};
struct OnDivision {
  Place at;
  const Type* type;
};
struct OnAddress {
  Place at;
  const Type* type;
  uint8_t alignment, access;  // log2 of the bytes that the type asks for; what was to be done
};

unsigned bits_of(const Type* type) { return 1u << (type->info >> 1); }

template <class Text>
void report_undefined(const char* kind, const Place& at, Text text) {
  if (!current) return;
  Report found;
  found.kind = kind;
  found.site = {at.file, int(at.line), 0};
  report(found, [&] { return text() + ": thread " + std::to_string(current->index); });
}
}  // namespace

extern "C" {
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_read_range(void* p, long n) { access(p, size_t(n), false, false, FROM); }
void __tsan_write_range(void* p, long n) { access(p, size_t(n), true, false, FROM); }
void __tsan_func_entry(void* returns_to) {
  if (current) current->callers.push_back(returns_to);
}
void __tsan_func_exit() {
  if (current && !current->callers.empty()) current->callers.pop_back();
}
void __tsan_init() {}
// clang before 15 calls the C library's own, to which the linker then gives the second names.
MEMORY(__tsan_)
MEMORY(__wrap_)

void __ubsan_handle_out_of_bounds(OnIndex* d, uintptr_t index) {
  report_undefined("index outside an array", d->at, [&] {
    long at = bits_of(d->index) == 32 ? long(int32_t(index)) : long(index);
    return "index " + std::to_string(at) + " of " + d->array->name;
  });
}
void __ubsan_handle_shift_out_of_bounds(OnShift* d, uintptr_t, uintptr_t by) {
  report_undefined("shift", d->at, [&] {
    long places = bits_of(d->by) == 32 ? long(int32_t(by)) : long(by);
    return "by " + std::to_string(places) + " places of " + std::to_string(bits_of(d->shifted)) + " bits";
  });
}
void __ubsan_handle_divrem_overflow(OnDivision* d, uintptr_t, uintptr_t) {
  report_undefined("division by zero", d->at, [&] { return std::string("integer division or remainder"); });
  kill_current();
}
void __ubsan_handle_type_mismatch_v1(OnAddress* d, uintptr_t address) {
  report_undefined("misaligned access", d->at, [&] {
    uintptr_t over = address & ((uintptr_t(1) << d->alignment) - 1);
    return std::to_string(over) + " bytes beyond a multiple of " + std::to_string(1 << d->alignment) + ", for " +
           d->type->name;
  });
}
}
