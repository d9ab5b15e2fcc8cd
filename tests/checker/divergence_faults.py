"""More planted faults, as in `faults`: threads that meet at one line, and don't come from the same call."""

from __future__ import annotations

from faults import Fault

_HELPERS = """
__attribute__((noinline)) inline void meet_all(int) {
    threadgroup_barrier(mem_flags::mem_threadgroup);{0}
}
__attribute__((noinline)) inline float total(float x) {
    return simd_sum(x);{1}
}
"""


def _helpers(marked: int) -> str:
    marks = ["  // here" * (number == marked) for number in range(2)]
    return _HELPERS.replace("{0}", marks[0]).replace("{1}", marks[1])


DIVERGENCE = [
    Fault(
        "a barrier in a function that two branches call",
        "divergent barrier",
        ": only 16 of 64 threads of the threadgroup come here; thread 16 waits in threadgroup_barrier at line 2 by "
        "another call",
        """
        if (i < 16) {
            meet_all(1);
        } else {
            meet_all(2);
        }
        y0[at] = x0[at];
        """,
        {"header": _helpers(0)},
    ),
    Fault(
        "a simd operation in a function that two branches call",
        "divergent simd operation",
        ": simd_sum: only 16 of 32 lanes take part; thread 1 waits in simd_sum at line 5 by another call",
        """
        y0[at] = lane % 2 == 0 ? total(x0[at]) : total(-x0[at]);
        """,
        {"header": _helpers(1)},
    ),
    Fault(
        "barriers of two branches in one line",
        "divergent barrier",
        ": only 16 of 64 threads of the threadgroup come here; thread 16 waits in threadgroup_barrier at line 5 by "
        "another call",
        """
        #define MEET threadgroup_barrier(mem_flags::mem_threadgroup)
        if (i < 16) { MEET; } else { MEET; }  // here
        y0[at] = x0[at];
        """,
    ),
    Fault(
        "simd operations of two branches in one line",
        "divergent simd operation",
        ": simd_max: only 16 of 32 lanes take part",
        """
        y0[at] = lane % 2 == 0 ? simd_max(x0[at]) : simd_max(-x0[at]);  // here
        """,
    ),
]
