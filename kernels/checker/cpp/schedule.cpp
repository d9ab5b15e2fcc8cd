#include "schedule.h"

#include <string.h>

#include <algorithm>
#include <vector>

#include "memory.h"
#include "report.h"

Thread* current = nullptr;
uint32_t group_number = 0;
uint64_t steps = 0;
uint32_t now = 1;
std::vector<Report> reports;

namespace {
constexpr uint32_t kThreads = 1024;
const Launch* launch;
tq_position position;
std::vector<Thread> threads(kThreads);
uint32_t thread_count;

struct Simdgroup {
  char slots[2][tq_lanes * tq_slot_bytes];  // two sets by turns: a lane may be late to read the last one
  uint32_t active[2];
  uint32_t turn;
  uint32_t last_barrier[4];  // time of the last barrier that orders memory 1 (device) and 2 (threadgroup); 0: any
};
Simdgroup simdgroups[kThreads / tq_lanes];
uint32_t last_barrier[4];  // of the threadgroup, likewise

void wait(State state) {
  Thread* me = current;
  me->state = state;
  steps++;
  leave_fiber(me->fiber);
}

void thread_main() {
  for (;;) {
    tq_position mine = position;
    mine.index = current->index;
    launch->entry(launch->buffers, &mine);
    wait(State::done);
  }
}

void pass_barrier(uint32_t* last, int memory) {
  now++;
  last[0] = now;
  if (memory & tq_device) last[tq_device] = now;
  if (memory & tq_threadgroup) last[tq_threadgroup] = now;
}

bool same_line(const Thread& a, const Thread& b) {
  return a.site.line == b.site.line && a.operation == b.operation && !strcmp(a.site.file, b.site.file);
}

// A line may call twice, and what it is in may be called from two branches.
bool same_place(const Thread& a, const Thread& b) {
  if (!same_line(a, b) || a.site.column != b.site.column) return false;
  return a.site.column || (a.call == b.call && a.callers == b.callers);
}

std::string place_of(const Thread& thread, const Thread& other) {
  std::string who = "thread " + std::to_string(thread.index);
  if (thread.state == State::done) return who + " came to the end without it";
  return who + " waits in " + thread.operation + " at line " + std::to_string(thread.site.line) +
         (same_line(thread, other) ? " by another call" : "");
}

// One operation of the lanes that came to the same place, the first of the body's if there are several.
void meet(Thread* lanes, uint32_t count) {
  Thread* first = nullptr;
  for (uint32_t i = 0; i < count; i++)
    if (lanes[i].state == State::at_simd && (!first || lanes[i].site.line < first->site.line)) first = &lanes[i];
  const Thread at = *first;
  uint32_t active = 0, present = 0;
  const Thread* missing = nullptr;
  for (uint32_t i = 0; i < count; i++) {
    if (lanes[i].killed) continue;
    present++;
    if (lanes[i].state == State::at_simd && same_place(lanes[i], at)) {
      active |= 1u << i;
    } else if (!missing) {
      missing = &lanes[i];
    }
  }
  if (missing) {
    Report found;
    found.kind = "divergent simd operation";
    found.site = at.site;
    report(found, [&] {
      return std::string(at.operation) + ": only " + std::to_string(__builtin_popcount(active)) + " of " +
             std::to_string(present) + " lanes take part; " + place_of(*missing, at);
    });
  }
  Simdgroup& simdgroup = simdgroups[at.simdgroup];
  if (!strcmp(at.operation, "simdgroup_barrier")) {
    pass_barrier(simdgroup.last_barrier, at.memory);
  } else {
    simdgroup.active[simdgroup.turn] = active;
    simdgroup.turn ^= 1;
  }
  for (uint32_t i = 0; i < count; i++)
    if (active >> i & 1) lanes[i].state = State::ready;
}

// Runs the lanes of a simdgroup until each waits at a barrier of the threadgroup or has returned.
void run_simdgroup(Thread* lanes, uint32_t count) {
  for (;;) {
    bool meets = false;
    for (uint32_t i = 0; i < count; i++) {
      if (lanes[i].state == State::ready) {
        current = &lanes[i];
        enter_fiber(lanes[i].fiber);
        current = nullptr;
      }
      meets |= lanes[i].state == State::at_simd;
    }
    if (!meets) return;
    meet(lanes, count);
  }
}

// All that wait go on, and it is reported if that isn't every thread of the group at the same barrier.
void release_barrier() {
  Thread* first = nullptr;
  uint32_t together = 0, others = 0;
  const Thread* missing = nullptr;
  for (uint32_t i = 0; i < thread_count; i++)
    if (threads[i].state == State::at_barrier && (!first || threads[i].site.line < first->site.line))
      first = &threads[i];
  for (uint32_t i = 0; i < thread_count; i++) {
    if (threads[i].killed) continue;
    bool is_here = threads[i].state == State::at_barrier && same_place(threads[i], *first);
    is_here ? together++ : others++;
    if (!is_here && !missing) missing = &threads[i];
  }
  if (missing) {
    Report found;
    found.kind = "divergent barrier";
    found.site = first->site;
    report(found, [&] {
      return "only " + std::to_string(together) + " of " + std::to_string(together + others) +
             " threads of the threadgroup come here; " + place_of(*missing, *first);
    });
  }
  pass_barrier(last_barrier, first->memory);
  for (uint32_t i = 0; i < thread_count; i++)
    if (threads[i].state == State::at_barrier) threads[i].state = State::ready;
}

void run_group() {
  now++;
  memset(last_barrier, 0, sizeof last_barrier);
  for (Simdgroup& s : simdgroups) memset(s.last_barrier, 0, sizeof s.last_barrier), s.turn = 0;
  for (uint32_t i = 0; i < thread_count; i++) {
    Thread& t = threads[i];
    t.index = i;
    t.lane = i % tq_lanes;
    t.simdgroup = i / tq_lanes;
    if (!t.fiber.stack || t.killed || t.state != State::done) prepare_fiber(t.fiber, thread_main, i);
    t.callers.clear();
    t.killed = false;
    t.state = State::ready;
  }
  for (;;) {
    for (uint32_t i = 0; i < thread_count; i += tq_lanes)
      run_simdgroup(&threads[i], std::min(uint32_t(tq_lanes), thread_count - i));
    bool waits = false;
    for (uint32_t i = 0; i < thread_count; i++) waits |= threads[i].state == State::at_barrier;
    if (!waits) return;
    release_barrier();
  }
}
}  // namespace

void run_all(const Launch& what) {
  launch = &what;
  uint32_t groups = 1;
  for (int k = 0; k < 3; k++) {
    position.grid[k] = what.grid[k];
    position.nominal[k] = what.threadgroup[k];
    position.groups[k] = (what.grid[k] + what.threadgroup[k] - 1) / what.threadgroup[k];
    groups *= position.groups[k];
  }
  for (group_number = 0; group_number < groups; group_number++) {
    uint32_t rest = group_number;
    thread_count = 1;
    for (int k = 0; k < 3; k++) {
      position.group[k] = rest % position.groups[k];
      rest /= position.groups[k];
      uint32_t start = position.group[k] * what.threadgroup[k];
      position.size[k] = std::min(what.threadgroup[k], what.grid[k] - start);
      thread_count *= position.size[k];
    }
    begin_threadgroup_memory();
    run_group();
  }
}

void kill_current() {
  current->killed = true;
  wait(State::done);
}

bool is_ordered(const Access& earlier, tq_memory memory) {
  if (earlier.group != group_number) return false;
  if (earlier.thread == current->index + 1) return true;
  if (earlier.time < last_barrier[memory]) return true;
  bool same_simdgroup = (earlier.thread - 1) / tq_lanes == current->simdgroup;
  return same_simdgroup && earlier.time < simdgroups[current->simdgroup].last_barrier[memory];
}

std::string between(const Access& earlier, tq_memory memory) {
  if (earlier.group != group_number) return "threadgroups run in no order";
  const char* flag = memory == tq_device ? "mem_device" : "mem_threadgroup";
  if (earlier.time < last_barrier[0]) return std::string("only a barrier without ") + flag + " between";
  bool same_simdgroup = (earlier.thread - 1) / tq_lanes == current->simdgroup;
  if (same_simdgroup && earlier.time < simdgroups[current->simdgroup].last_barrier[0])
    return std::string("only a simdgroup_barrier without ") + flag + " between";
  return "no barrier between";
}

extern "C" {
void tq_threadgroup_barrier(int memory, tq_site site) {
  current->call = last_pc = __builtin_return_address(0);
  current->site = site;
  current->operation = "threadgroup_barrier";
  current->memory = memory;
  wait(State::at_barrier);
}

void tq_simdgroup_barrier(int memory, tq_site site) {
  current->call = last_pc = __builtin_return_address(0);
  current->site = site;
  current->operation = "simdgroup_barrier";
  current->memory = memory;
  wait(State::at_simd);
}

tq_exchange tq_meet(const void* value, size_t bytes, const char* operation, tq_site site) {
  Thread* me = current;
  me->call = last_pc = __builtin_return_address(0);
  Simdgroup& simdgroup = simdgroups[me->simdgroup];
  uint32_t turn = simdgroup.turn;
  memcpy(simdgroup.slots[turn] + tq_slot_bytes * me->lane, value, bytes);
  me->site = site;
  me->operation = operation;
  wait(State::at_simd);
  return {simdgroup.slots[turn], simdgroup.active[turn], me->lane};
}

void tq_absent_lane(const char* operation, unsigned lane, tq_site site) {
  Report found;
  found.kind = "inactive lane";
  found.site = site;
  report(found, [&] {
    return std::string(operation) + " of lane " + std::to_string(int(lane)) + ", which takes no part, by thread " +
           std::to_string(current->index);
  });
}
}
