// One stack for every GPU thread, and switching between them.
#pragma once
#include <stddef.h>

struct Fiber {
  void* saved = nullptr;  // where it goes on
  char* stack = nullptr;
};

enum : size_t { kStackBytes = size_t(256) << 10 };

// Gives the fiber a stack, unless it has one, and lets it start with `start`, which never returns.
// `number` staggers the stacks, so that the same variable of all fibers isn't in one set of the CPU's cache.
void prepare_fiber(Fiber& fiber, void (*start)(), unsigned number);
// From the scheduler to a fiber, and back.
void enter_fiber(Fiber& fiber);
void leave_fiber(Fiber& fiber);
bool on_stack(const Fiber& fiber, const void* address);
