"""Planted faults: a body each, with the faulty line marked, and what has to be said of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from textwrap import dedent
from typing import Any

import mlx.core as mx
from bodies import launch

from tqcli.kernels.runtime.kernel import Launch

NUMBERS = mx.arange(64, dtype=mx.float32)
GO = """\
uint i = thread_index_in_threadgroup;
uint at = thread_position_in_grid.x;
uint lane = thread_index_in_simdgroup;
"""
"""Three lines that bodies begin with."""


@dataclass(frozen=True)
class Fault:
    name: str
    kind: str
    says: str
    """What its finding says, after the kind."""
    body: str
    more: dict[str, Any] = field(default_factory=dict)
    """Other arguments of `launch`."""
    also: tuple[str, ...] = ()
    """What else is true of it."""

    def launch(self) -> Launch:
        return launch(GO + dedent(self.body).lstrip("\n"), **{"inputs": [NUMBERS], **self.more})


FAULTS = [
    Fault(
        "read past the end",
        "out-of-bounds read",
        "of x0[64]: thread 63 of threadgroup 0; x0 has 64 elements",
        """
        y0[at] = x0[at + 1];  // here
        """,
    ),
    Fault(
        "read before the start",
        "out-of-bounds read",
        "of x0[4294967295]",
        """
        y0[at] = x0[at - 1];  // here
        """,
    ),
    Fault(
        "write past the end",
        "out-of-bounds write",
        "of y0[64]: thread 5 of threadgroup 0; y0 has 64 elements",
        """
        y0[at] = x0[at];
        if (at == 5) y0[64] = 1.0f;  // here
        """,
    ),
    Fault(
        "write far away",
        "out-of-bounds write",
        "of y0[3000000000]: thread 7",
        """
        y0[at] = x0[at];
        if (at == 7) y0[3000000000ul] = 1.0f;  // here
        """,
    ),
    Fault(
        "read past a threadgroup array",
        "out-of-bounds read",
        "of buf[64]: thread 63; buf has 64 elements",
        """
        threadgroup float buf[64];
        buf[i] = x0[at];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        y0[at] = buf[i + 1];  // here
        """,
    ),
    Fault(
        "write past a threadgroup array through a pointer",
        "out-of-bounds write",
        "of buf[64]: thread 63; buf has 64 elements",
        """
        threadgroup float buf[64];
        threadgroup float* p = buf + 1;
        p[i] = x0[at];  // here
        y0[at] = p[i];
        """,
    ),
    Fault(
        "no barrier",
        "data race",
        "on buf[32]: thread 32 writes, thread 31 reads, no barrier between (the read: line 6)",
        """
        threadgroup float buf[64];
        buf[i] = x0[at];  // here
        y0[at] = buf[63 - i];
        """,
        also=("uninitialised read",),
    ),
    Fault(
        "a barrier for device memory",
        "data race",
        "on buf[63]: thread 63 writes, thread 0 reads, only a barrier without mem_threadgroup between",
        """
        threadgroup float buf[64];
        buf[i] = x0[at];  // here
        threadgroup_barrier(mem_flags::mem_device);
        y0[at] = buf[63 - i];
        """,
    ),
    Fault(
        "a barrier for no memory",
        "data race",
        "on buf[63]: thread 63 writes, thread 0 reads, only a barrier without mem_threadgroup between",
        """
        threadgroup float buf[64];
        buf[i] = x0[at];  // here
        threadgroup_barrier(mem_flags::mem_none);
        y0[at] = buf[63 - i];
        """,
    ),
    Fault(
        "a simdgroup's barrier across simdgroups",
        "data race",
        "on buf[32]: thread 32 writes, thread 31 reads, no barrier between",
        """
        threadgroup float buf[64];
        buf[i] = x0[at];  // here
        simdgroup_barrier(mem_flags::mem_threadgroup);
        y0[at] = buf[63 - i];
        """,
        also=("uninitialised read",),
    ),
    Fault(
        "no barrier before memory is written again",
        "data race",
        "on buf[31]: thread 31 writes, thread 32 reads, no barrier between (the read: line 8)",
        """
        threadgroup float buf[64];
        for (int turn = 0; turn < 2; turn++) {
          buf[i] = x0[at] + turn;  // here
          threadgroup_barrier(mem_flags::mem_threadgroup);
          y0[at] = buf[63 - i];
        }
        """,
    ),
    Fault(
        "all threads write one element",
        "data race",
        "on sum[0]: thread 1 writes, thread 0 writes, no barrier between",
        """
        threadgroup float sum;
        sum = x0[at];  // here
        threadgroup_barrier(mem_flags::mem_threadgroup);
        y0[at] = sum;
        """,
    ),
    Fault(
        "two threadgroups write one element",
        "data race",
        "on y0[0]: thread 0 of threadgroup 1 writes, thread 0 of threadgroup 0 writes, threadgroups run in no order",
        """
        y0[at % 32] = x0[at];  // here
        """,
        {
            "threadgroup": 32,
            "outputs": ((32,),),
        },
    ),
    Fault(
        "threadgroups read what others write",
        "data race",
        "on y0[0]: thread 0 of threadgroup 0 writes, thread 0 of threadgroup 1 reads, threadgroups run in no order",
        """
        y0[at] = x0[at] + (at < 32 ? 0.0f : y0[at - 32]);  // here
        """,
        {
            "threadgroup": 32,
        },
    ),
    Fault(
        "a threadgroup reads its output without mem_device",
        "data race",
        "on y0[63]: thread 63 writes, thread 0 reads, only a barrier without mem_device between (the read: line 6)",
        """
        y0[at] = x0[at];  // here
        threadgroup_barrier(mem_flags::mem_threadgroup);
        y1[at] = y0[63 - at];
        """,
        {
            "outputs": ((64,), (64,)),
        },
    ),
    Fault(
        "a plain write beside atomic ones",
        "data race",
        "on y0[0]: thread 63 writes, thread 62 writes, no barrier between (the other write: line 5)",
        """
        if (at == 63) y0[0] = 1;  // here
        else atomic_fetch_add_explicit((device atomic_uint*)y0, 1u, memory_order_relaxed);
        """,
        {
            "dtypes": [mx.uint32],
            "outputs": ((1,),),
            "init_value": 0,
        },
    ),
    Fault(
        "a threadgroup array is read before it is written",
        "uninitialised read",
        "of buf[63]: thread 63 reads what no thread has written",
        """
        threadgroup float buf[64];
        if (i < 63) buf[i] = x0[at];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        y0[at] = buf[i];  // here
        """,
    ),
    Fault(
        "a threadgroup array of the last threadgroup",
        "uninitialised read",
        "of buf[0]: thread 0 reads what no thread has written",
        """
        threadgroup float buf[32];
        if (at < 32) buf[i] = x0[at];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        y0[at] = buf[i];  // here
        """,
        {
            "threadgroup": 32,
        },
    ),
    Fault(
        "an output is read before it is written",
        "uninitialised read",
        "of y0[0]: thread 0 of threadgroup 0 reads what no thread has written",
        """
        y0[at] += x0[at];  // here
        """,
    ),
    Fault(
        "an element is never written",
        "unwritten output",
        ": y0[7]: 1 of 64 elements were never written, this one first",
        """
        if (at != 7) y0[at] = x0[at];  // here
        """,
    ),
    Fault(
        "an output is never written",
        "unwritten output",
        ": y1[0]: 3 of 3 elements were never written",
        """
        y0[at] = x0[at] + (at > 99 ? y1[0] : 0.0f);  // here
        """,
        {
            "outputs": ((64,), (3,)),
        },
    ),
    Fault(
        "some threads return before a barrier",
        "divergent barrier",
        ": only 40 of 64 threads of the threadgroup come here; thread 40 came to the end without it",
        """
        if (i >= 40) return;
        threadgroup_barrier(mem_flags::mem_threadgroup);  // here
        y0[at] = x0[at];
        """,
        {
            "outputs": ((40,),),
        },
    ),
    Fault(
        "two barriers",
        "divergent barrier",
        ": only 32 of 64 threads of the threadgroup come here; thread 32 waits in threadgroup_barrier at line 7",
        """
        if (i < 32)
          threadgroup_barrier(mem_flags::mem_threadgroup);  // here
        else
          threadgroup_barrier(mem_flags::mem_threadgroup);
        y0[at] = x0[at];
        """,
    ),
    Fault(
        "a shuffle out of the simdgroup",
        "inactive lane",
        ": simd_shuffle of lane 32, which takes no part, by thread 31",
        """
        y0[at] = simd_shuffle(x0[at], ushort(lane + 1));  // here
        """,
    ),
    Fault(
        "a simd operation of some lanes",
        "divergent simd operation",
        ": simd_sum: only 16 of 32 lanes take part; thread 16 came to the end without it",
        """
        float sum = x0[at];
        if (lane < 16)
          sum = simd_sum(sum);  // here
        y0[at] = sum;
        """,
    ),
    Fault(
        "threadgroup memory",
        "threadgroup memory",
        ": b brings it to 32772 bytes; a threadgroup has 32768",
        """
        threadgroup float a[8192];
        threadgroup float b;  // here
        a[i] = x0[at];
        if (i == 0) b = 1.0f;
        y0[at] = a[i];
        """,
    ),
    Fault(
        "a write to an input",
        "write to an input",
        ": x0[0]: thread 0 of threadgroup 0",
        """
        y0[at] = x0[at];
        ((device float*)x0)[at] = 1.0f;  // here
        """,
    ),
    Fault(
        "a shift by the width",
        "shift",
        ": by 32 places of 32 bits: thread 31",
        """
        y0[at] = x0[at] + float(1u << (at + 1));  // here
        """,
    ),
    Fault(
        "an index of a local array",
        "index outside an array",
        ": index 4 of 'float [4]': thread 4",
        """
        float own[4] = {1.0f, 2.0f, 3.0f, 4.0f};
        own[at % 4] += 1.0f;
        y0[at] = own[at % 5];  // here
        """,
    ),
    Fault(
        "division by zero",
        "division by zero",
        ": integer division or remainder: thread 3",
        """
        y0[at] = x0[at];
        if (at == 3) y0[at] = 7 / int(x0[0]);  // here
        """,
    ),
    Fault(
        "a misaligned vector",
        "misaligned access",
        ": 4 bytes beyond a multiple of 16, for ",
        """
        if (at < 15) {
            float4 v = *(const device float4*)(x0 + at * 4 + 1);  // here
            y0[at] = v.x;
        }
        """,
        {
            "outputs": ((15,),),
        },
    ),
    Fault(
        "in a header",
        "out-of-bounds read",
        "of x0[64]: thread 63 of threadgroup 0",
        """
        y0[at] = next(x0, at);
        """,
        {
            "header": """
            template <typename Row>
            inline float next(Row row, uint at) {
                return row[at + 1];  // here
            }
            """,
        },
    ),
]
