"""Bodies without a fault: nothing is found, and they compute what Metal's documents say."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from bodies import launch

from tqcli.kernels.checker import check
from tqcli.kernels.runtime.kernel import Launch

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal(128).astype(np.float32)
BITS = RANDOM.integers(0, 2**32, 128, dtype=np.uint32)
START = """
uint at = thread_position_in_grid.x;
uint i = thread_index_in_threadgroup;
uint lane = thread_index_in_simdgroup;
"""


def outputs(right: Launch) -> list[np.ndarray]:
    checked = check(right)
    assert checked.findings == []
    return checked.outputs


def run(body: str, x: np.ndarray = X, dtype: mx.Dtype = mx.float32) -> np.ndarray:
    """Two threadgroups of 64 threads, x0 in and y0 out, 128 elements each."""
    (y,) = outputs(launch(START + body, [mx.array(x)], ((128,),), 128, 64, dtypes=[dtype]))
    return y


def rows(x: np.ndarray) -> np.ndarray:
    """A row a simdgroup."""
    return x.reshape(4, 32)


LANES = np.arange(32)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("simd_sum(x0[at])", np.repeat(rows(BITS).sum(1, dtype=np.uint32), 32)),
        ("simd_max(x0[at])", np.repeat(rows(BITS).max(1), 32)),
        ("simd_min(x0[at])", np.repeat(rows(BITS).min(1), 32)),
        ("simd_or(x0[at] & 255u)", np.repeat(np.bitwise_or.reduce(rows(BITS & 255), 1), 32)),
        ("simd_and(x0[at] | 255u)", np.repeat(np.bitwise_and.reduce(rows(BITS | 255), 1), 32)),
        ("simd_xor(x0[at])", np.repeat(np.bitwise_xor.reduce(rows(BITS), 1), 32)),
        ("simd_prefix_inclusive_sum(x0[at])", rows(BITS).cumsum(1, dtype=np.uint32).ravel()),
        ("simd_prefix_exclusive_sum(x0[at])", (rows(BITS).cumsum(1, dtype=np.uint32) - rows(BITS)).ravel()),
        ("simd_shuffle(x0[at], ushort(31 - lane))", rows(BITS)[:, ::-1].ravel()),
        ("simd_shuffle_xor(x0[at], 5)", rows(BITS)[:, LANES ^ 5].ravel()),
        ("simd_shuffle_up(x0[at], 3)", rows(BITS)[:, np.where(LANES < 3, LANES, LANES - 3)].ravel()),
        ("simd_shuffle_down(x0[at], 3)", rows(BITS)[:, np.where(LANES > 28, LANES, LANES + 3)].ravel()),
        ("simd_shuffle_rotate_down(x0[at], 3)", rows(BITS)[:, (LANES + 3) % 32].ravel()),
        ("simd_broadcast(x0[at], 7)", np.repeat(rows(BITS)[:, 7], 32)),
        ("simd_broadcast_first(x0[at])", np.repeat(rows(BITS)[:, 0], 32)),
        ("uint(simd_vote::vote_t(simd_ballot(x0[at] & 1)))", np.repeat((rows(BITS & 1) << LANES).sum(1), 32)),
        ("simd_any(lane == 3 && x0[at] != 0) ? 1u : 0u", np.ones(128, np.uint32)),
        ("simd_all(lane == 3) ? 1u : 0u", np.zeros(128, np.uint32)),
        ("popcount(x0[at])", np.bitwise_count(BITS)),
        ("clz(x0[at] >> 5)", np.array([32 - int(b >> 5).bit_length() for b in BITS])),
        ("ctz(x0[at] | 1024u)", np.array([((int(b) | 1024) & -(int(b) | 1024)).bit_length() - 1 for b in BITS])),
        ("extract_bits(x0[at], 4u, 9u)", (BITS >> 4) & 511),
        ("as_type<uint>(as_type<float>(x0[at]))", BITS),
        ("thread_position_in_grid.x", np.arange(128)),
        ("threadgroup_position_in_grid.x * 100 + simdgroup_index_in_threadgroup", np.repeat([0, 1, 100, 101], 32)),
        ("threads_per_threadgroup.x + threadgroups_per_grid.x + threads_per_grid.y", np.full(128, 64 + 2 + 1)),
        ("simdgroups_per_threadgroup + threads_per_simdgroup", np.full(128, 34)),
        ("uint(x0_shape[0] + x0_strides[0] + x0_ndim)", np.full(128, 128 + 1 + 1)),
    ],
)  # fmt: skip
def test_operations_on_integers(call: str, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(run(f"y0[at] = {call};", BITS, mx.uint32), expected)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("simd_sum(x0[at])", np.repeat(rows(X).sum(1), 32)),
        ("metal::exp(x0[at])", np.exp(X)),
        ("metal::precise::log(metal::fabs(x0[at]))", np.log(np.abs(X))),
        ("rsqrt(abs(x0[at]))", 1 / np.sqrt(np.abs(X))),
        ("metal::fast::tanh(x0[at])", np.tanh(X)),
        ("metal::floor(x0[at] * 10.0f)", np.floor(X * np.float32(10))),
        ("metal::rint(x0[at] * 10.0f)", np.rint(X * np.float32(10))),
        ("metal::fma(x0[at], 2.0f, 1.0f)", X * 2 + 1),
        ("clamp(x0[at], -0.5f, 0.5f)", np.clip(X, -0.5, 0.5)),
        ("metal::max(x0[at], 0.0f) + metal::min(x0[at], 0.0f)", X),
        ("select(1.0f, 2.0f, x0[at] > 0.0f)", np.where(X > 0, 2, 1)),
        ("isnan(x0[at] / 0.0f * 0.0f) ? 1.0f : 0.0f", np.ones(128)),
        ("dot(float4(x0[at]), float4(1.0f, 2.0f, 3.0f, 4.0f))", X * 10),
        ("(float4(1.0f) * x0[at] + 2 * float4(0.5f)).z", X + 1),
        ("float(half(x0[at]))", X.astype(np.float16)),
        ("float(bfloat16_t(x0[at]))", np.array(mx.array(X).astype(mx.bfloat16).astype(mx.float32))),
    ],
)
def test_operations_on_floats(call: str, expected: np.ndarray) -> None:
    np.testing.assert_allclose(run(f"y0[at] = {call};"), expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_small_floats_come_in_and_go_out(dtype: mx.Dtype) -> None:
    x = mx.array(X).astype(dtype)
    doubled = launch(START + "y0[at] = T(float(x0[at]) * 2.0f);", [x], ((128,),), 128, 64, {"T": dtype}, [dtype])
    (y,) = outputs(doubled)
    np.testing.assert_array_equal(y.astype(np.float32), np.array((x * 2).astype(mx.float32)))


MEET = "threadgroup_barrier(mem_flags::mem_threadgroup);"


@pytest.mark.parametrize(
    "body",
    [
        f"""
        threadgroup float buf[64];
        buf[i] = x0[at];
        {MEET}
        y0[at] = buf[63 - i];
        """,
        """
        threadgroup float buf[64];
        buf[i] = x0[at];
        threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
        y0[at] = buf[63 - i];
        """,
        """
        threadgroup float buf[2][32];
        threadgroup float* p = &buf[i / 32][0];
        p[lane] = x0[at];
        simdgroup_barrier(mem_flags::mem_threadgroup);
        y0[at] = buf[i / 32][31 - lane];
        """,
        """
        y0[at] = x0[at];
        threadgroup_barrier(mem_flags::mem_device);
        float other = y0[at / 64 * 64 + 63 - i];
        threadgroup_barrier(mem_flags::mem_device);
        y0[at] += 0.0f * other;
        """,
        f"""
        threadgroup float buf[64], sum;
        buf[i] = x0[at];
        {MEET}
        if (i == 0) {{
            sum = 0.0f;
            for (uint k = 0; k < 64; k++) sum += buf[k];
        }}
        {MEET}
        y0[at] = sum;
        """,
        """
        if (at >= 128) return;
        y0[at] = x0[at];
        """,
        f"""
        threadgroup uchar bytes[256];
        ((threadgroup uint*)bytes)[i] = uint(i);
        {MEET}
        y0[at] = bytes[4 * (63 - i)];
        """,
        f"""
        threadgroup uint words[64];
        ((threadgroup uchar*)words)[i] = uchar(i);
        {MEET}
        y0[at] = ((threadgroup uchar*)words)[63 - i];
        """,
        """
        constexpr float table[4] = {1.0f, 2.0f, 3.0f, 4.0f};
        float own[4];
        for (uint k = 0; k < 4; k++) own[k] = table[k];
        y0[at] = x0[at] * own[at % 4];
        """,
        """
        float4 v = ((const device float4*)x0)[at / 4];
        y0[at] = v[at % 4];
        """,
        """
        // threadgroup float no[9]; threadgroup_barrier(mem_flags::mem_none);
        y0[at] = x0[at]; /* y0[at + 1] = 0; */
        """,
    ],
)
def test_nothing_is_found_where_nothing_is_wrong(body: str) -> None:
    y = run(body)
    assert np.isfinite(y).all()


def test_atomics_count_over_threadgroups() -> None:
    body = START + "atomic_fetch_add_explicit((device atomic_uint*)&y0[x0[at]], 1u, memory_order_relaxed);"
    digits = RANDOM.integers(0, 10, 128).astype(np.uint32)
    (y,) = outputs(launch(body, [mx.array(digits)], ((10,),), 128, 64, dtypes=[mx.uint32], init_value=0))
    np.testing.assert_array_equal(y, np.bincount(digits, minlength=10))


def test_three_axes_and_two_outputs() -> None:
    body = """
    uint3 p = thread_position_in_grid;
    uint3 n = threads_per_grid;
    uint at = (p.z * n.y + p.y) * n.x + p.x;
    y0[at] = p.x + 10 * p.y + 100 * p.z;
    y1[at] = thread_index_in_threadgroup;
    """
    a, b = outputs(launch(body, [], ((3, 4, 16), (3, 4, 16)), (16, 4, 3), (8, 4, 1), dtypes=[mx.uint32, mx.uint32]))
    z, y, x = np.indices((3, 4, 16))
    np.testing.assert_array_equal(a, x + 10 * y + 100 * z)
    np.testing.assert_array_equal(b, x % 8 + 8 * y)


def test_templates_and_headers() -> None:
    header = """
    template <int N, typename Row>
    inline float sum_of(Row row) {
        float s = 0;
        for (int k = 0; k < N; k++) s += row[k];
        return s;
    }
    """
    body = (
        "uint at = thread_position_in_grid.x;\ny0[at] = U(SIGNED ? -sum_of<N>(x0 + at * N) : sum_of<N>(x0 + at * N));"
    )
    x = RANDOM.standard_normal((32, 5)).astype(np.float32)
    for signed in (False, True):
        template = {"N": 5, "SIGNED": signed, "U": mx.float32}
        (y,) = outputs(launch(body, [mx.array(x)], ((32,),), 32, 32, template, header=header))
        np.testing.assert_allclose(y, x.sum(1) * (-1 if signed else 1), rtol=1e-5)


def test_initial_values_may_be_read_and_left() -> None:
    right = launch(START + "if (at < 64) y0[at] += x0[at];", [mx.array(X)], ((128,),), 128, 64, init_value=2.5)
    (y,) = outputs(right)
    np.testing.assert_array_equal(y, np.where(np.arange(128) < 64, X + np.float32(2.5), np.float32(2.5)))


def test_simdgroups_may_go_their_own_ways_together() -> None:
    """Each simdgroup its own number of rounds and its own call; threadgroup barriers in uniform loops and functions."""
    header = """
    __attribute__((noinline)) inline float met(float x, int) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        return simd_max(x);
    }
    """
    body = """
    float v = x0[at], left = float(lane);
    while (simd_any(left > 0.0f)) left -= 8.0f;
    if (i / 32 == 1) { v = simd_sum(v); v += simd_sum(left); } else { v = simd_min(v); }
    for (uint k = 0; k < i / 32 + 1; k++) v += simd_max(v);
    for (uint k = 0; k < 3; k++) v = k == 1 ? met(v, 1) : met(v, 2);
    y0[at] = v + left * 0.0f;
    """
    (y,) = outputs(launch(START + body, [mx.array(X)], ((128,),), 128, 64, header=header))
    assert (rows(y) == rows(y)[:, :1]).all()
