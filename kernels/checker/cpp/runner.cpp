// Runs one launch of a compiled body:  runner BODY.so ENTRY SECONDS [bytes] <request >response
// With "bytes" it keeps its books of every byte instead of whole elements.
//
// Request: 6 uint32 (grid, threadgroup), uint32 buffers, and for each buffer in the order of the parameters
//   uint32 role (0 input, 1 output, 2 output with initial values), element size, name length; uint64 bytes; name; data.
// What the body itself prints goes nowhere, and is reported. The runner ends with the process that started it.
// Response: uint64 length of the text, the text, then the outputs' data.
// Text: "part" or "whole", a tab and the bytes of threadgroup memory; then one line a report, fields apart by tabs:
//   kind, region, file, line, address in BODY.so, address of the other access, its role, count, text.
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#include "memory.h"
#include "report.h"
#include "schedule.h"

extern std::vector<Report> reports;

namespace {
constexpr unsigned kIdleSeconds = 4;
constexpr rlim_t kPrinted = 1 << 20;  // bytes that a body may print at most before they are dropped

struct Output {
  const char* data;
  size_t bytes;
};
std::vector<Output> outputs;
FILE* response = nullptr;
const char* image = nullptr;  // load address of the body
const char image_of_runner[1] = "";
char signal_stack[65536];

template <class T>
T take() {
  T value;
  if (fread(&value, sizeof value, 1, stdin) != 1) exit(3);
  return value;
}

void put(const void* data, size_t bytes) {
  if (bytes && fwrite(data, bytes, 1, response) != 1) _exit(3);
}

void respond() {
  std::string text = saw_part_of_granule && !by_byte ? "part\t" : "whole\t";
  text += std::to_string(threadgroup_bytes()) + "\n";
  auto offset = [](const void* pc) {
    return std::to_string(pc ? static_cast<const char*>(pc) - image - 1 : 0);  // the call, not where it returns to
  };
  for (const Report& r : reports) {
    text += std::string(r.kind) + "\t" + r.region + "\t" + (r.site.file ? r.site.file : "") + "\t" +
            std::to_string(r.site.line) + "\t" + offset(r.pc) + "\t" + offset(r.other_pc) + "\t" + r.other_role + "\t" +
            std::to_string(r.count) + "\t" + r.text + "\n";
  }
  uint64_t length = text.size();
  put(&length, sizeof length);
  put(text.data(), text.size());
  for (const Output& output : outputs) put(output.data, output.bytes);
  if (fflush(response)) _exit(3);
}

// Where the body called what the signal found: the stack's first word, from the top, that points into the body.
const void* caller(uintptr_t stack) {
  if (!current) return nullptr;
  const void* const* word = reinterpret_cast<const void* const*>(stack & ~uintptr_t(7));
  for (; on_stack(current->fiber, word); word++)
    if (in_image(*word)) return *word;
  return nullptr;
}

bool in_runner(const void* address) {
  Dl_info its, ours;
  return dladdr(address, &its) && dladdr(image_of_runner, &ours) && its.dli_fbase == ours.dli_fbase;
}

const void* place_of(void* context) {
#if defined(__x86_64__)
  const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  uintptr_t pc = uintptr_t(registers[REG_RIP]), stack = uintptr_t(registers[REG_RSP]);
#elif defined(__aarch64__)
  const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext;
  uintptr_t pc = registers.pc, stack = registers.sp;
#else
  uintptr_t pc = 0, stack = 0;
#endif
  const char* at = reinterpret_cast<const char*>(pc);
  if (in_image(at)) return at + 1;  // as `respond` takes it: of an instruction that returns here
  const void* from = in_runner(at) ? nullptr : caller(stack);
  return from ? from : last_pc;
}

void end_with(const char* kind, const std::string& text, const void* pc) {
  Report found;
  found.kind = kind;
  found.pc = pc;
  report(found, [&] { return (current ? "thread " + std::to_string(current->index) : "the checker") + " " + text; });
  respond();
  _exit(0);
}

void on_fault(int number, siginfo_t*, void* context) { end_with("crash", "ends by " + std::string(strsignal(number)), place_of(context)); }
void on_limit(int, siginfo_t*, void* context) { end_with("no end", "is stopped by the time limit", place_of(context)); }

void on_exit() {
  if (!current) return;
  uintptr_t here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  const void* from = caller(here);
  end_with("crash", "ends the program that runs it", from ? from : last_pc);
}

// From here on the body's stdout is a file of its own.
void divert_stdout() {
  response = fdopen(dup(1), "wb");
  int file = memfd_create("printed", 0);
  if (!response || file < 0 || dup2(file, 1) < 0) exit(3);
  rlimit most = {kPrinted, kPrinted};
  setrlimit(RLIMIT_FSIZE, &most);
  signal(SIGXFSZ, SIG_IGN);
}

void report_printed() {
  fflush(stdout);
  if (lseek(1, 0, SEEK_CUR) <= 0) return;
  Report found;
  found.kind = "print";
  report(found, [] { return std::string("the body writes to stdout, which a GPU hasn't"); });
}

// Called every few seconds of computing; `steps` that stand still are a loop that will not end.
unsigned idle_seconds;
void on_idle(int, siginfo_t*, void* context) {
  static uint64_t before = 0;
  if (steps == before) {
    std::string seconds = std::to_string(idle_seconds);
    end_with("no end", "computes for " + seconds + " s without a barrier or an access of a buffer", place_of(context));
  }
  before = steps;
}

void catch_signals(unsigned seconds) {
  stack_t stack = {};
  stack.ss_sp = signal_stack;
  stack.ss_size = sizeof signal_stack;
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigfillset(&action.sa_mask);
  auto on = [&](int number, void (*handler)(int, siginfo_t*, void*)) {
    action.sa_sigaction = handler;
    sigaction(number, &action, nullptr);
  };
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) on(number, on_fault);
  on(SIGALRM, on_limit);
  on(SIGVTALRM, on_idle);
  alarm(seconds);
  idle_seconds = seconds < kIdleSeconds ? seconds : kIdleSeconds;
  itimerval often = {{time_t(idle_seconds), 0}, {time_t(idle_seconds), 0}};
  setitimer(ITIMER_VIRTUAL, &often, nullptr);
}

void leave_signals() {
  alarm(0);
  itimerval never = {};
  setitimer(ITIMER_VIRTUAL, &never, nullptr);
}

int find_image(dl_phdr_info* info, size_t, void* entry) {
  const char* start = reinterpret_cast<const char*>(info->dlpi_addr);
  const char *low = nullptr, *high = nullptr;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    const char* from = start + header.p_vaddr;
    low = low && low < from ? low : from;
    high = high > from + header.p_memsz ? high : from + header.p_memsz;
  }
  if (entry < low || entry >= high) return 0;
  image = start;
  set_image(low, high);
  return 1;
}
}  // namespace

int main(int count, char** arguments) {
  if (count < 4) return 3;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  divert_stdout();
  atexit(on_exit);
  by_byte = count > 4;
  void* library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  void* entry = library ? dlsym(library, arguments[2]) : nullptr;
  if (!entry) {
    fprintf(stderr, "%s\n", dlerror());
    return 3;
  }
  dl_iterate_phdr(find_image, entry);
  reserve_memory();
  Launch launch;
  launch.entry = reinterpret_cast<tq_entry>(entry);
  for (uint32_t& side : launch.grid) side = take<uint32_t>();
  for (uint32_t& side : launch.threadgroup) side = take<uint32_t>();
  std::vector<void*> buffers(take<uint32_t>());
  for (void*& buffer : buffers) {
    uint32_t role = take<uint32_t>(), element = take<uint32_t>(), length = take<uint32_t>();
    uint64_t bytes = take<uint64_t>();
    std::string name(length, ' ');
    if (fread(&name[0], 1, length, stdin) != length) return 3;
    char* data = add_buffer(name.c_str(), role ? Role::output : Role::input, bytes, element, role == 2);
    if (fread(data, 1, bytes, stdin) != bytes) return 3;
    if (role) outputs.push_back({data, bytes});
    buffer = data;
  }
  launch.buffers = buffers.data();
  catch_signals(unsigned(atoi(arguments[3])));
  run_all(launch);
  leave_signals();
  report_unwritten();
  report_printed();
  respond();
  return 0;
}
