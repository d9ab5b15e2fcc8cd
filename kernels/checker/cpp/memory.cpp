#include "memory.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "report.h"
#include "schedule.h"

bool by_byte = false;
bool saw_part_of_granule = false;
const void* last_pc = nullptr;

namespace {
// Every array lies in a slot of its own address range, wide enough that a wrong index still tells its array: of floats
// even one that went below 0 in 32 bits without sign.
constexpr int kSlotBits = 36;
constexpr size_t kSlots = 64, kSlot = size_t(1) << kSlotBits, kStart = kSlot / 4, kPage = 4096, kLimit = 32768, kMostGranule = 4;
constexpr int kMostStrayPages = 256;

struct Several {  // of accesses that don't race with each other, those that may race with a later one
  Access last;
  Access before;  // the last one of another thread
  Access apart;   // the last one of another simdgroup than `last`, since the last barrier
  Access abroad;  // the last one of an earlier threadgroup
};

struct Granule {  // what is remembered of a few bytes: who touched it plainly
  Access writer;
  Several readers;
  bool is_written = false;
};

struct Atomics {  // and who atomically; apart, for neither must push the other out
  Several writers, readers;
};

struct Region {
  std::string name;
  Role role;
  char* data;
  size_t bytes, element, granule;
  std::vector<Granule> granules;
  std::vector<Atomics> atomics;  // empty until the first one
};

char* base = nullptr;
std::vector<Region> regions;
std::vector<int> threadgroup_arrays;  // their regions, by number
const char *image_low = nullptr, *image_high = nullptr;
int stray_pages = 0;

std::string person(const Access& who, bool with_group) {
  std::string text = "thread " + std::to_string(who.thread - 1);
  return with_group ? text + " of threadgroup " + std::to_string(who.group) : text;
}

std::string element_name(const Region& region, int64_t at) {
  int64_t element = int64_t(region.element);
  int64_t index = at >= 0 ? at / element : -((-at + element - 1) / element);
  return region.name + "[" + std::to_string(index) + "]";
}

Access access_now(const void* pc) { return {current->index + 1, group_number, now, pc}; }

[[noreturn]] void fail(const std::string& why) {
  fprintf(stderr, "%s\n", why.c_str());
  _exit(3);
}

Region& add_region(const char* name, Role role, size_t bytes, size_t element) {
  size_t number = regions.size();
  if (number == kSlots)
    fail(std::string(name) + " is one too many: a launch has at most " + std::to_string(kSlots) +
         " arrays, which are inputs, their shapes, outputs and threadgroup arrays");
  if (bytes > kSlot / 4) fail(std::string(name) + " has " + std::to_string(bytes) + " bytes, which are too many");
  size_t granule = by_byte ? 1 : element < kMostGranule ? element : kMostGranule;
  Region region = {name, role, base + number * kSlot + kStart, bytes, element, granule, {}, {}};
  size_t mapped = (bytes + kPage - 1) / kPage * kPage;
  if (mapped && mprotect(region.data, mapped, PROT_READ | PROT_WRITE)) fail(std::string("there is no memory for ") + name);
  regions.push_back(region);
  if (role != Role::input) regions.back().granules.resize((bytes + granule - 1) / granule);
  return regions.back();
}

void report_out_of_bounds(const Region& region, int64_t at, size_t bytes, bool writes, const void* pc) {
  Report found;
  found.kind = writes ? "out-of-bounds write" : "out-of-bounds read";
  found.region = region.name;
  found.pc = pc;
  int64_t reached = at >= 0 ? at + int64_t(bytes) - 1 : at;
  report(found, [&] {
    bool many = region.role != Role::threadgroup;
    return element_name(region, reached) + ": " + person(access_now(pc), many) + "; " + region.name + " has " +
           std::to_string(region.bytes / region.element) + " elements";
  });
}

// The address is harmless in the slot's empty part: let the thread go on, so that nothing else follows from it.
void let_pass(const char* at, size_t bytes) {
  size_t first = (at - base) / kPage, last = (at + bytes - 1 - base) / kPage;
  stray_pages += int(last - first + 1);
  if (stray_pages > kMostStrayPages || mprotect(base + first * kPage, (last - first + 1) * kPage, PROT_READ | PROT_WRITE))
    kill_current();
}

void report_wild(bool writes, const void* pc) {
  Report found;
  found.kind = writes ? "out-of-bounds write" : "out-of-bounds read";
  found.pc = pc;
  report(found, [&] { return "far from every buffer: " + person(access_now(pc), true); });
  kill_current();
}

// A race is told at the line that writes, and of two writes at the later one.
void report_race(const Region& region, int64_t at, const Access& earlier, const Access& later, bool earlier_writes,
                 bool later_writes) {
  Report found;
  found.kind = "data race";
  found.region = region.name;
  bool both = earlier_writes && later_writes;
  const Access& writer = later_writes ? later : earlier;
  const Access& other = later_writes ? earlier : later;
  found.pc = writer.pc;
  found.other_pc = other.pc;
  found.other_role = both ? "the other write" : "the read";
  report(found, [&] {
    bool groups = earlier.group != later.group;
    tq_memory memory = region.role == Role::threadgroup ? tq_threadgroup : tq_device;
    return element_name(region, at) + ": " + person(writer, groups) + " writes, " + person(other, groups) +
           (both ? " writes, " : " reads, ") + between(earlier, memory);
  });
}

void note(Several& those, const Access& me) {
  Access& last = those.last;
  if (last.thread && last.group != me.group) {
    those.abroad = last;
    last = those.before = those.apart = Access();
  }
  if (last.thread && last.thread != me.thread) {
    if ((last.thread - 1) / tq_lanes != (me.thread - 1) / tq_lanes) those.apart = last;
    those.before = last;
  }
  last = me;
}

void touch(Region& region, size_t number, int64_t at, bool writes, bool updates, bool atomic, const Access& me) {
  Granule& g = region.granules[number];
  if (atomic && region.atomics.empty()) region.atomics.resize(region.granules.size());
  Atomics* atomics = region.atomics.empty() ? nullptr : &region.atomics[number];
  if ((!writes || updates) && !g.is_written) {
    Report found;
    found.kind = "uninitialised read";
    found.region = region.name;
    found.pc = me.pc;
    report(found, [&] {
      return element_name(region, at) + ": " + person(me, region.role == Role::output) +
             " reads what no thread has written" +
             (updates && region.role == Role::output ? "; give the launch an init_value" : "");
    });
  }
  tq_memory memory = region.role == Role::threadgroup ? tq_threadgroup : tq_device;
  auto look = [&](const Access& earlier, bool wrote) {
    bool races = earlier.thread && !is_ordered(earlier, memory);
    if (races) report_race(region, at, earlier, me, wrote, writes);
    return races;
  };
  auto look_at = [&](const Several& those, bool wrote) {
    look(those.last, wrote) || look(those.before, wrote) || look(those.apart, wrote) || look(those.abroad, wrote);
  };
  look(g.writer, true);
  if (writes) look_at(g.readers, false);
  if (!atomic && atomics) {
    look_at(atomics->writers, true);
    if (writes) look_at(atomics->readers, false);
  }
  if (atomic) {
    note(writes ? atomics->writers : atomics->readers, me);
  } else if (writes) {
    g.writer = me;
  } else {
    note(g.readers, me);
  }
  g.is_written |= writes;
}
}  // namespace

void reserve_memory() {
  void* all = mmap(nullptr, kSlots * kSlot, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) fail("there is no room for the arrays' addresses");
  base = static_cast<char*>(all);
  regions.reserve(kSlots);
}

char* add_buffer(const char* name, Role role, size_t bytes, size_t element, bool is_written) {
  Region& region = add_region(name, role, bytes, element);
  for (Granule& g : region.granules) g.is_written = is_written;
  return region.data;
}

void set_image(const void* low, const void* high) {
  image_low = static_cast<const char*>(low);
  image_high = static_cast<const char*>(high);
}

bool in_image(const void* address) { return address >= image_low && address < image_high; }

void begin_threadgroup_memory() {
  for (int number : threadgroup_arrays) {
    if (number < 0) continue;
    Region& region = regions[size_t(number)];
    memset(region.data, 0xff, region.bytes);  // NaN
    region.granules.assign(region.granules.size(), Granule());
    region.atomics.clear();
  }
}

size_t threadgroup_bytes() {
  size_t sum = 0;
  for (const Region& region : regions) sum += region.role == Role::threadgroup ? region.bytes : 0;
  return sum;
}

void report_unwritten() {
  for (const Region& region : regions) {
    if (region.role != Role::output) continue;
    size_t elements = region.bytes / region.element, each = region.element / region.granule;
    size_t first = elements, missing = 0;
    for (size_t i = 0; i < elements; i++) {
      bool is_written = true;
      for (size_t k = 0; k < each; k++) is_written &= region.granules[i * each + k].is_written;
      if (!is_written) first = missing++ ? first : i;
    }
    if (!missing) continue;
    Report found;
    found.kind = "unwritten output";
    found.region = region.name;
    report(found, [&] {
      return element_name(region, int64_t(first * region.element)) + ": " + std::to_string(missing) + " of " +
             std::to_string(elements) + " elements were never written, this one first";
    });
  }
}

void access(const void* address, size_t bytes, bool writes, bool atomic, const void* pc, bool updates) {
  const char* p = static_cast<const char*>(address);
  if (!current) return;
  last_pc = pc;
  size_t slot = size_t(p - base) >> kSlotBits;
  if (p < base || slot >= regions.size()) {
    bool known = on_stack(current->fiber, address) || in_image(address);
    return known ? void() : report_wild(writes, pc);
  }
  steps++;
  Region& region = regions[slot];
  int64_t at = p - region.data;
  if (at < 0 || at + int64_t(bytes) > int64_t(region.bytes)) {
    report_out_of_bounds(region, at, bytes, writes, pc);
    return let_pass(p, bytes);
  }
  if (region.role == Role::input) {
    if (!writes) return;
    Report found;
    found.kind = "write to an input";
    found.region = region.name;
    found.pc = pc;
    return report(found, [&] { return element_name(region, at) + ": " + person(access_now(pc), true); });
  }
  size_t granule = region.granule;
  if (bytes % granule || size_t(at) % granule) saw_part_of_granule = true;
  Access me = access_now(pc);
  for (size_t i = size_t(at) / granule; i * granule < size_t(at) + bytes; i++)
    touch(region, i, int64_t(i * granule), writes, updates, atomic, me);
}

extern "C" {
void* tq_threadgroup_array(int index, const char* name, size_t bytes, size_t element, tq_site site) {
  if (size_t(index) >= threadgroup_arrays.size()) threadgroup_arrays.resize(size_t(index) + 1, -1);
  int& number = threadgroup_arrays[size_t(index)];
  if (number >= 0) return regions[size_t(number)].data;
  number = int(regions.size());
  Region& region = add_region(name, Role::threadgroup, bytes, element);
  memset(region.data, 0xff, bytes);
  if (size_t sum = threadgroup_bytes(); sum > kLimit) {
    Report found;
    found.kind = "threadgroup memory";
    found.region = name;
    found.site = site;
    report(found, [&] {
      return std::string(name) + " brings it to " + std::to_string(sum) + " bytes; a threadgroup has " +
             std::to_string(kLimit);
    });
  }
  return region.data;
}

void tq_atomic(const void* address, size_t bytes, tq_use use, const void* from) {
  access(address, bytes, use & tq_writes, true, from, use == tq_updates);
}
}
