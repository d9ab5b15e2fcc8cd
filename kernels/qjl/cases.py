"""Small launches of the one-bit sketches' kernels, with what they must give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from tqcli.kernels.bit_pack.reference import unpack_bits
from tqcli.kernels.qjl import reference
from tqcli.kernels.qjl.launch import encode_launch, scores_launch
from tqcli.kernels.runtime.case import Case, Outputs, close, scales_differ

Array = np.ndarray[Any, np.dtype[Any]]
_FLOAT32_STEP = 2.0**-23


def cases() -> Iterator[Case]:
    """Every head size and dtype once, rows that fill no word, vectors that fill no threadgroup."""
    for d, m, n, dtype in (
        (32, 32, 1, mx.float32),
        (64, 64, 33, mx.float16),
        (64, 48, 7, mx.bfloat16),
        (72, 100, 5, mx.float32),
        (80, 80, 7, mx.float16),
        (96, 33, 40, mx.bfloat16),
        (128, 128, 3, mx.bfloat16),
        (192, 7, 7, mx.float16),
        (256, 65, 2, mx.float32),
        (6, 3, 1, mx.float32),
    ):
        yield _encode(_normal(n, d).astype(dtype), _normal(m, d))
    yield _encode(_extremes(), _normal(40, 64))
    for m, heads, queries, tokens, dtype in (
        (32, 1, 1, 1, mx.bfloat16),
        (48, 2, 3, 7, mx.bfloat16),
        (100, 3, 7, 63, mx.float16),
        (128, 1, 8, 600, mx.bfloat16),
        (256, 2, 2, 257, mx.float32),
        (7, 1, 14, 5, mx.bfloat16),
        (160, 1, 9, 31, mx.bfloat16),
    ):
        yield _scores(m, heads, queries, tokens, dtype)


@dataclass(frozen=True)
class NearZero:
    """Differs where a sign is another one though its projection is clearly not 0, or a scale by two steps.

    projected [n, m]: the exact projections; rounding [n, m]: how far float32 may be off, negative for a vector that
    isn't finite, whose signs are all 0. Both float64. Outputs are those of `encode_launch`.
    """

    projected: Array
    rounding: Array

    @staticmethod
    def of(x: mx.array, sketch: mx.array) -> NearZero:
        """For vectors x [n, d] and a sketch [m, d]."""
        wide, rows = _wide(x), _wide(sketch)
        with np.errstate(invalid="ignore"):
            projected, most = wide @ rows.T, np.abs(wide) @ np.abs(rows).T
            return NearZero(projected, np.where(np.isfinite(most), most * _FLOAT32_STEP * np.sqrt(x.shape[-1]), -1))

    def __call__(self, outputs: Outputs, expected: Outputs) -> str | None:
        for n, (a, b) in enumerate(zip(outputs, expected, strict=True)):
            if a.shape != b.shape:
                return f"output {n}: shape {a.shape}, not {b.shape}"
        wrong = self._differs(outputs, expected) & ~(np.abs(self.projected) <= self.rounding)
        if wrong.any():
            at = tuple(map(int, np.argwhere(wrong)[0]))
            sign, right = "-+" if self.projected[at] > 0 else "+-"
            first = f"first at {list(at)}: {sign}, not {right}, of a projection of {self.projected[at]:.7g}"
            return f"{int(wrong.sum())} of {wrong.size} signs differ, {first}"
        used = self.projected.shape[-1] - 32 * (outputs[0].shape[-1] - 1)
        beyond = outputs[0][:, -1].astype(np.uint64) >> np.uint64(used)
        if beyond.any():
            return f"the bits beyond the last sign are {beyond[beyond != 0][0]:#x}, not 0"
        return scales_differ(outputs[1], expected[1])

    def boundary_codes(self, outputs: Outputs, expected: Outputs) -> tuple[int, int]:
        """How many signs differ, and of how many."""
        differs = self._differs(outputs, expected)
        return int(differs.sum()), differs.size

    def _differs(self, outputs: Outputs, expected: Outputs) -> Array:
        got, wanted = (unpack_bits(mx.array(signs[0]), 1, self.projected.shape[-1]) for signs in (outputs, expected))
        return np.array(got != wanted)


def _encode(x: mx.array, sketch: mx.array) -> Case:
    def expected() -> list[mx.array]:
        signs, scales = reference.sketch_signs(x, sketch)
        return [signs, scales.view(mx.uint16)]

    return Case("qjl", encode_launch(x, sketch), expected, NearZero.of(x, sketch))


def _scores(m: int, heads: int, queries: int, tokens: int, dtype: mx.Dtype) -> Case:
    sketch, x = _normal(m, 64), _normal(heads, tokens, 64)
    signs, scales = reference.sketch_signs(x, sketch)
    scales, q, gain = scales.astype(dtype), _normal(heads, queries, 64), 0.37
    launch = scores_launch(reference.project(q, sketch, gain), signs, scales)
    return Case(
        "qjl",
        launch,
        lambda: [reference.sketch_scores(q, signs, scales, sketch, gain)],
        close(rtol=1e-5, atol=1e-5 * m),
    )


def _extremes() -> mx.array:
    """Zeros of both signs, magnitudes near both ends of float32, infinity and NaN."""
    rows = [0.0, 3.4028235e38, 1e30, 1e-30, 1e-37, 3e38, mx.inf, -mx.inf, mx.nan]
    plus_minus = np.random.default_rng(1).choice([-1.0, 1.0], (len(rows), 64))
    with np.errstate(invalid="ignore"):
        x = (plus_minus * np.array(rows)[:, None]).astype(np.float32)
    x[-4:, :-1] = 1.0
    return mx.array(x)


def _normal(*shape: int) -> mx.array:
    return mx.array(np.random.default_rng(shape).standard_normal(shape).astype(np.float32))


def _wide(x: mx.array) -> Array:
    return np.array(x.astype(mx.float32)).astype(np.float64)
