"""Metal's standard functions compute in the checker what its documents say."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from bodies import launch

from tqcli.kernels.checker import check
from tqcli.kernels.checker.lint import find_clang, lint

RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(0.1, 0.9, 33).astype(np.float32)
Y = RANDOM.uniform(-3, 3, 33).astype(np.float32)
A = RANDOM.integers(-(2**31), 2**31, 33, dtype=np.int64)
B = RANDOM.integers(-(2**31), 2**31, 33, dtype=np.int64)
LOWER = ((A & 0xFFFFFF) ^ 0x800000) - 0x800000, ((B & 0xFFFFFF) ^ 0x800000) - 0x800000
XY = np.hypot(X, Y)
T = np.clip((X - 0.2) / 0.5, 0, 1)


def outputs(value: str, arrays: list[np.ndarray], dtype: mx.Dtype) -> np.ndarray:
    body = f"uint at = thread_position_in_grid.x;\n{value}\n"
    right = launch(body, [mx.array(x) for x in arrays], ((33,),), 33, 33, dtypes=[dtype])
    clang = find_clang()
    assert clang is not None
    assert lint(right, clang) == []
    checked = check(right)
    assert checked.findings == []
    return checked.outputs[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("step(0.5f, x)", X >= 0.5),
        ("smoothstep(0.2f, 0.7f, x)", T * T * (3 - 2 * T)),
        ("length(float2(x, y))", XY),
        ("length_squared(float3(x, y, 0.0f))", XY**2),
        ("distance(float2(x, 0.0f), float2(0.0f, y))", XY),
        ("distance_squared(float2(x, 0.0f), float2(0.0f, y))", XY**2),
        ("normalize(float2(x, y)).y", Y / XY),
        ("cross(float3(x, y, 1.0f), float3(2.0f, 3.0f, 4.0f)).z", 3 * X - 2 * Y),
        ("reflect(float2(x, y), float2(0.0f, 1.0f)).y", -Y),
        ("refract(float2(0.0f, -1.0f), float2(0.0f, 1.0f), x).y", np.full(33, -1)),
        ("faceforward(float2(x, y), float2(x, y), float2(1.0f, 0.0f)).x", -X),
        ("acosh(x + 1.0f)", np.arccosh(X + 1)),
        ("asinh(x)", np.arcsinh(X)),
        ("atanh(x)", np.arctanh(X)),
        ("sinpi(x) + cospi(y) + tanpi(x * 0.4f)", np.sin(np.pi * X) + np.cos(np.pi * Y) + np.tan(np.pi * X * 0.4)),
        ("fdim(x, y)", np.maximum(X - Y, 0)),
        ("metal::precise::divide(x, y) + metal::fast::divide(x, y) + divide(x, y)", 3 * X / Y),
        ("powr(x, y) + pow(x, 2.0f)", X**Y + X**2),
        ("max3(x, y, 0.5f) + min3(x, y, 0.5f) + median3(x, y, 0.5f)", X + Y + np.float32(0.5)),
        ("fmax3(x, y, 0.5f) + fmin3(x, y, 0.5f) + fmedian3(x, y, 0.5f)", X + Y + np.float32(0.5)),
        ("nextafter(x, 2.0f)", np.nextafter(X, np.float32(2))),
        ("float(ilogb(x))", np.floor(np.log2(X))),
        ("isnormal(x) && isordered(x, y) && isunordered(x, NAN) ? 1.0f : 0.0f", np.ones(33)),
        ("mix(float2(x, y), float2(1.0f), 0.25f).y", Y + (1 - Y) * 0.25),
        ("clamp(float2(x, y), -1.0f, 1.0f).y", np.clip(Y, -1, 1)),
        ("fmax(float2(x, y), float2(0.0f)).y + pow(float2(x, 1.0f), float2(2.0f)).x", np.maximum(Y, 0) + X**2),
        ("abs(float2(x, y)).y", np.abs(Y)),
        ("float(half(numeric_limits<half>::max()))", np.full(33, 65504)),
        ("M_LN2_F * M_LOG2E_F", np.ones(33)),
    ],
)
def test_functions_of_floats(value: str, expected: np.ndarray) -> None:
    got = outputs(f"float x = x0[at], y = x1[at];\ny0[at] = {value};", [X, Y], mx.float32)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


def test_functions_that_give_two_values() -> None:
    body = """
    float whole, cosine;
    int exponent;
    float part = modf(x1[at], whole), sine = sincos(x0[at], cosine), fraction = frexp(x0[at], exponent);
    y0[at] = (part + whole) * (sine * sine + cosine * cosine) + ldexp(fraction, exponent);
    """
    np.testing.assert_allclose(outputs(body, [X, Y], mx.float32), Y + X, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("mul24(a, b)", LOWER[0] * LOWER[1]),
        ("mad24(a, b, 7)", LOWER[0] * LOWER[1] + 7),
        ("mulhi(a, b)", (A * B) >> 32),
        ("madhi(a, b, 5)", ((A * B) >> 32) + 5),
        ("madsat(a, b, 5)", np.clip(A * B + 5, -(2**31), 2**31 - 1)),
        ("addsat(a, b)", np.clip(A + B, -(2**31), 2**31 - 1)),
        ("subsat(a, b)", np.clip(A - B, -(2**31), 2**31 - 1)),
        ("int(absdiff(a / 2, b / 2))", np.abs((np.abs(A) // 2) * np.sign(A) - (np.abs(B) // 2) * np.sign(B))),
        ("hadd(a, b)", (A + B) >> 1),
        ("rhadd(a, b)", (A + B + 1) >> 1),
        ("max3(a, b, 0) + min3(a, b, 0)", np.maximum(np.maximum(A, B), 0) + np.minimum(np.minimum(A, B), 0)),
        ("int(rotate(uint(a), 8u))", ((A & 0xFFFFFFFF) << 8) | ((A & 0xFFFFFFFF) >> 24)),
        ("insert_bits(a, b, 4u, 9u)", (A & ~(511 << 4)) | ((B & 511) << 4)),
        ("popcount(uint2(uint(a), 3u)).x", np.bitwise_count((A & 0xFFFFFFFF).astype(np.uint32))),
    ],
)
def test_functions_of_integers(value: str, expected: np.ndarray) -> None:
    arrays = [A.astype(np.int32), B.astype(np.int32)]
    got = outputs(f"int a = x0[at], b = x1[at];\ny0[at] = {value};", arrays, mx.int32)
    np.testing.assert_array_equal(got, expected.astype(np.int64).astype(np.int32))
