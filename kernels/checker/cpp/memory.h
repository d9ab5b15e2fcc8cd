// The memory that a body may use: bounds, what has been written, and who touched it last.
#pragma once
#include <stddef.h>
#include <stdint.h>

enum class Role { input, output, threadgroup };

void reserve_memory();
// A buffer of the launch, its content to be filled in by the caller.
char* add_buffer(const char* name, Role role, size_t bytes, size_t element, bool is_written);
// Addresses between these hold the body's own constants.
void set_image(const void* low, const void* high);
bool in_image(const void* address);
// Forgets the threadgroup arrays' content, for the next threadgroup.
void begin_threadgroup_memory();
// Reports outputs of which elements were never written.
void report_unwritten();
// Bytes of all threadgroup arrays so far.
size_t threadgroup_bytes();
// Books are kept of granules: whole elements but for large ones, or bytes if that is set before the first buffer.
extern bool by_byte;
// An access to a part of a granule was seen, so that the books may be wrong: run again by byte.
extern bool saw_part_of_granule;

extern const void* last_pc;
// `updates`: a write that reads first, as atomic operations do.
void access(const void* address, size_t bytes, bool writes, bool atomic, const void* pc, bool updates = false);
