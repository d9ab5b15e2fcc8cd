// What was found in one run.
#pragma once
#include <stdint.h>

#include <string>
#include <vector>

#include "interface.h"

struct Report {
  const char* kind = "";
  std::string region;           // the buffer, if any
  tq_site site = {nullptr, 0, 0};  // the line, or else
  const void* pc = nullptr;     // the return address into the body
  const void* other_pc = nullptr;
  const char* other_role = "";  // what happened at `other_pc`
  std::string text;
  int64_t count = 1;
};

// Keeps the first of the reports that agree in kind, region and place, and counts the others.
// `text` is called only for the first.
template <class Text>
void report(Report found, Text text) {
  extern std::vector<Report> reports;
  for (Report& r : reports) {
    if (r.kind == found.kind && r.pc == found.pc && r.other_pc == found.other_pc && r.region == found.region &&
        r.site.line == found.site.line && r.site.file == found.site.file) {
      r.count++;
      return;
    }
  }
  found.text = text();
  reports.push_back(found);
}
