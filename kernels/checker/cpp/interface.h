// What a compiled body and the runner call of each other.
#pragma once
#include <stddef.h>
#include <stdint.h>

// Where a GPU thread stands; all sizes in threads but `groups`, which counts threadgroups.
struct tq_position {
  uint32_t index;     // of the thread in its threadgroup
  uint32_t group[3];  // the threadgroup in the grid
  uint32_t groups[3];
  uint32_t size[3];     // of this threadgroup, smaller at a ragged edge
  uint32_t nominal[3];  // of a whole threadgroup
  uint32_t grid[3];
};

// One launch of a body: `buffers` in the order of its parameters.
typedef void (*tq_entry)(void* const* buffers, const tq_position* at);

// A call in the body, as `#line` gives it. Without a column, which g++ hasn't, the addresses of calls tell them apart;
// clang, which has, gives one call several of them.
struct tq_site {
  const char* file;
  int line;
  int column;
};

// The values that the lanes of a simdgroup brought to an operation, in slots of `tq_slot_bytes`.
struct tq_exchange {
  const char* slots;
  uint32_t active;  // one bit a lane
  uint32_t lane;    // the caller's
};
enum { tq_slot_bytes = 32, tq_lanes = 32 };
enum tq_use { tq_reads = 1, tq_writes = 2, tq_updates = 3 };
enum tq_memory { tq_device = 1, tq_threadgroup = 2 };

extern "C" {
void tq_threadgroup_barrier(int memory, tq_site site);
void tq_simdgroup_barrier(int memory, tq_site site);
tq_exchange tq_meet(const void* value, size_t bytes, const char* operation, tq_site site);
// A value was asked of a lane that takes no part.
void tq_absent_lane(const char* operation, unsigned lane, tq_site site);
// The threadgroup's array number `index`; the same memory for every thread of the group.
void* tq_threadgroup_array(int index, const char* name, size_t bytes, size_t element, tq_site site);
void tq_atomic(const void* address, size_t bytes, tq_use use, const void* from);
}
