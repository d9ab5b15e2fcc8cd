"""More planted faults, as in `faults`: of atomic operations and shuffles."""

from __future__ import annotations

from faults import Fault

MORE = [
    Fault(
        "an atomic sum upon nothing",
        "uninitialised read",
        "of y0[0]: thread 0 of threadgroup 0 reads what no thread has written; give the launch an init_value",
        """
        atomic_fetch_add_explicit((device atomic_float*)y0 + at, 1.0f, memory_order_relaxed);  // here
        """,
    ),
    Fault(
        "an atomic counter that nobody set",
        "uninitialised read",
        "of count[0]: thread 0 reads what no thread has written",
        """
        threadgroup atomic_uint count;
        atomic_fetch_add_explicit(&count, 1u, memory_order_relaxed);  // here
        y0[at] = x0[at];
        """,
    ),
    Fault(
        "a shuffle from beyond the simdgroup",
        "inactive lane",
        ": simd_shuffle_down of lane 40",
        """
        y0[at] = simd_shuffle_down(x0[at], 40);  // here
        """,
    ),
]
