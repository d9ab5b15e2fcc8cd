#include "fiber.h"

#include <stdlib.h>
#include <sys/mman.h>

#if !defined(__x86_64__) || defined(TQ_UCONTEXT)
#include <ucontext.h>
#endif

namespace {
char* new_stack() {
  void* stack =
      mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) abort();
  mprotect(stack, 4096, PROT_NONE);  // an overflow ends in a fault
  return static_cast<char*>(stack);
}

size_t stagger(unsigned number) { return number % 64 * 128; }
}  // namespace

bool on_stack(const Fiber& fiber, const void* address) {
  const char* at = static_cast<const char*>(address);
  return at >= fiber.stack && at < fiber.stack + kStackBytes;
}

#if defined(__x86_64__) && !defined(TQ_UCONTEXT)

// Saves what a callee has to keep, stores the stack pointer in *save and goes on at `to`.
extern "C" void tq_switch(void** save, void* to);
asm(R"(
.text
.globl tq_switch
.type tq_switch,@function
tq_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tq_switch,.-tq_switch
)");

namespace {
void* scheduler = nullptr;
}

void prepare_fiber(Fiber& fiber, void (*start)(), unsigned number) {
  if (!fiber.stack) fiber.stack = new_stack();
  void** top = reinterpret_cast<void**>(fiber.stack + kStackBytes - 256 - stagger(number));
  *--top = nullptr;  // a function begins with its return address at 16n + 8
  *--top = reinterpret_cast<void*>(start);
  for (int i = 0; i < 6; i++) *--top = nullptr;
  fiber.saved = top;
}

void enter_fiber(Fiber& fiber) { tq_switch(&scheduler, fiber.saved); }
void leave_fiber(Fiber& fiber) { tq_switch(&fiber.saved, scheduler); }

#else

namespace {
ucontext_t scheduler;
}

void prepare_fiber(Fiber& fiber, void (*start)(), unsigned number) {
  if (!fiber.stack) fiber.stack = new_stack();
  if (!fiber.saved) fiber.saved = new ucontext_t;
  ucontext_t* context = static_cast<ucontext_t*>(fiber.saved);
  getcontext(context);
  context->uc_stack.ss_sp = fiber.stack;
  context->uc_stack.ss_size = kStackBytes - stagger(number);
  context->uc_link = nullptr;
  makecontext(context, start, 0);
}

void enter_fiber(Fiber& fiber) { swapcontext(&scheduler, static_cast<ucontext_t*>(fiber.saved)); }
void leave_fiber(Fiber& fiber) { swapcontext(static_cast<ucontext_t*>(fiber.saved), &scheduler); }

#endif
