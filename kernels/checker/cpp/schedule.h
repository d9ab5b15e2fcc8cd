// GPU threads as fibers: which one runs, where they wait, and what orders their memory accesses.
#pragma once
#include <stdint.h>

#include <string>
#include <vector>

#include "fiber.h"
#include "interface.h"

enum class State { ready, at_simd, at_barrier, done };

struct Thread {
  Fiber fiber;
  uint32_t index, lane, simdgroup;
  State state = State::done;
  bool killed = false;  // by a fault that it couldn't go on after
  tq_site site = {nullptr, 0, 0};
  const void* call = nullptr;  // where the operation that it waits in returns to
  std::vector<const void*> callers;  // where the functions that it is in return to
  const char* operation = "";
  int memory = 0;  // that a barrier orders
};

struct Launch {
  tq_entry entry;
  void** buffers;
  uint32_t grid[3], threadgroup[3];
};

extern Thread* current;  // null while the scheduler runs
extern uint32_t group_number;
// Grows with every access of a buffer and every change of threads: a body that stands still is one without end.
extern uint64_t steps;
// Grows with every barrier; an access remembers it.
extern uint32_t now;

struct Access {
  uint32_t thread = 0;  // one more than the number of the thread in its group; 0 for none
  uint32_t group = 0;
  uint32_t time = 0;
  const void* pc = nullptr;
};

// Whether an earlier access comes before everything that `current` does now.
bool is_ordered(const Access& earlier, tq_memory memory);
// In words: what lies between the two instead of the barrier that is needed.
std::string between(const Access& earlier, tq_memory memory);

void run_all(const Launch& launch);
// Ends the current thread; doesn't return.
void kill_current();
