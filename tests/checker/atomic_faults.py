"""More planted faults, as in `faults`: of atomic operations and shuffles."""

from __future__ import annotations

import mlx.core as mx
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
    Fault(
        "a plain read after the thread's own atomic sum",
        "data race",
        "on y0[0]: thread 62 writes, thread 63 reads",
        """
        atomic_fetch_add_explicit((device atomic_uint*)y0, 1u, memory_order_relaxed);  // here
        if (i == 63) y0[1] = y0[0];
        """,
        {"dtypes": [mx.uint32], "init_value": 0},
    ),
    Fault(
        "a plain read, then atomic ones, then an atomic write",
        "data race",
        "on y0[0]: thread 63",
        """
        if (i == 0) y0[1] = y0[0];
        if (i > 0 && i < 63) y0[i + 1] = atomic_load_explicit((device atomic_uint*)y0, memory_order_relaxed);
        if (i == 63) atomic_store_explicit((device atomic_uint*)y0, 7u, memory_order_relaxed);  // here
        """,
        {"dtypes": [mx.uint32], "init_value": 0},
    ),
    Fault(
        "atomic reads before a plain write by the last of them",
        "data race",
        "on y0[0]: thread 63",
        """
        uint seen = atomic_load_explicit((device atomic_uint*)y0, memory_order_relaxed);
        if (i == 63) y0[0] = seen;  // here
        if (i != 0) y0[i] = seen;
        """,
        {"dtypes": [mx.uint32], "init_value": 0},
    ),
    Fault(
        "a plain write, then atomic sums of its thread",
        "data race",
        "on y0[0]: thread 0 writes, thread 1 reads",
        """
        device atomic_uint* first = (device atomic_uint*)y0;
        if (i == 0) y0[0] = 3;  // here
        if (i == 0) atomic_fetch_add_explicit(first, 1u, memory_order_relaxed);
        if (i == 1) y0[1] = atomic_load_explicit(first, memory_order_relaxed);
        """,
        {"dtypes": [mx.uint32], "init_value": 0},
    ),
]
