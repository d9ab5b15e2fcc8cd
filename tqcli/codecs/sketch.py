"""One-bit sketches: the matrix S of sign(S x), and what inner products estimated from the signs come to.

QJL (arXiv 2406.03482, section 3) estimates <q, x> by sqrt(pi / 2) / m * ||x|| * <S q, sign(S x)>, S Gaussian. That
constant is a limit. For a random unit vector u, E|u_1| = Gamma(d / 2) / (sqrt(pi) Gamma((d + 1) / 2)), so that
E<S u, sign(S u)> = E|u_1| * sum_i ||s_i|| for any rows s_i; dividing by it leaves no bias, for the very S in hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import exp, lgamma, pi, sqrt
from typing import Literal, cast, get_args

import mlx.core as mx
import numpy as np

from tqcli.codecs.rotation import (
    RotationKind,
    rotation_matrix,
    rotation_remarks,
    rotation_used,
    shared_rotation,
    take_rotation,
)
from tqcli.errors import InputError
from tqcli.kernels import sketch_scores
from tqcli.kernels.attend import Levels, Reader

SketchKind = Literal["orthogonal", "gaussian"]
_ROWS_AT_MOST = 1 << 14
_ROWS_IN_THEORY = 1 << 12
"""The exact error takes time and memory in proportion to their square."""
_FEWEST_TO_MIX = 32
"""One round of signs and Hadamard spreads fewer channels than these badly; a Haar-random matrix does."""
_BLOCK_SEED, _GAUSSIAN = 1 << 32, 0x5161
"""Seeds of a sketch's blocks lie beyond those of a user, so that no first-stage rotation is among them."""


@dataclass(frozen=True)
class SignSketch:
    """How S [rows, head_dim] is drawn.

    `orthogonal`: blocks of head_dim rows, each an independent random rotation times sqrt(head_dim), the last one cut.
    `gaussian`: independent standard normal elements.
    """

    codec: str
    kind: SketchKind
    rotation: RotationKind
    rows: int
    head_dim: int
    seed: int

    def arrays(self) -> dict[str, mx.array]:
        """What defines S and is stored once, by name.

        Signs int8 [rounds, head_dim] or a float32 [head_dim, head_dim] for each block; or float32 [rows, head_dim].
        """
        return dict(_arrays(self))

    def matrix(self, shared: Mapping[str, mx.array]) -> mx.array:
        """S, float32 [rows, head_dim], from what `arrays` gave. Raises `KeyError` if it isn't there."""
        if self.kind == "gaussian":
            return shared[self._gaussian_name]
        d = self.head_dim
        drawn = [take_rotation(shared, self._prefix, self.block_rotation, d, seed) for seed in self._block_seeds()]
        return mx.concatenate([rotation_matrix(block, d) for block in drawn])[: self.rows] * sqrt(d)

    def reader(self, signs: mx.array, scales: mx.array, shared: Mapping[str, mx.array]) -> Reader:
        """How fused attention reads a sketch: an element for each of the rows, +-scale, and the matrix S * `gain`."""
        matrix = self.matrix(shared)
        # The gain as an array: asking for the number would wait for the device.
        gained = matrix * (sqrt(self.head_dim) / mean_projection(self.head_dim))
        gained = gained / mx.sum(mx.linalg.norm(matrix, axis=1))
        return Reader(Levels(self.rows, (1,), (signs,), scales, mx.array([-1.0, 1.0])), matrix=gained)

    @property
    def block_rotation(self) -> RotationKind:
        """The rotation that makes the orthogonal blocks: `qr` for fewer than 32 channels."""
        return "qr" if self.head_dim < _FEWEST_TO_MIX and self.rotation != "none" else self.rotation

    def remarks(self) -> list[str]:
        """That another rotation makes the orthogonal blocks, where it does."""
        if self.kind == "gaussian" or rotation_used(self.block_rotation, self.head_dim) == self.rotation:
            return []
        if self.block_rotation == self.rotation:
            return rotation_remarks(self.rotation, self.head_dim)
        return [f"rotation {self.rotation} of the sketch is qr for {self.head_dim} channels: they are too few to mix"]

    def draw(self) -> dict[str, mx.array]:
        """`arrays`, computed."""
        d = self.head_dim
        if self.kind == "gaussian":
            rng = np.random.default_rng([self.seed, d, self.rows, _GAUSSIAN])
            return {self._gaussian_name: mx.array(rng.standard_normal((self.rows, d)).astype(np.float32))}
        blocks = [shared_rotation(self._prefix, self.block_rotation, d, seed) for seed in self._block_seeds()]
        return {name: array for block in blocks for name, array in block.items()}

    def _block_seeds(self) -> list[int]:
        return [self.seed + _BLOCK_SEED * (block + 1) for block in range(-(-self.rows // self.head_dim))]

    @property
    def _prefix(self) -> str:
        return f"{self.codec}.sketch"

    @property
    def _gaussian_name(self) -> str:
        return f"{self._prefix}.d{self.head_dim}.m{self.rows}.gaussian.seed{self.seed}"


def check_sketch(kind: str, rows: int) -> None:
    """Raises `InputError` for an unknown kind of sketch or a number of rows that can't be."""
    if kind not in get_args(SketchKind):
        raise InputError(f"sketch must be one of {', '.join(get_args(SketchKind))}, not {kind!r}")
    if not 0 <= rows <= _ROWS_AT_MOST:
        raise InputError(f"m must be 1 to {_ROWS_AT_MOST} rows, or 0 for as many as the bits ask for; not {rows}")


def mean_projection(d: int) -> float:
    """E|u_1| of a uniformly random unit vector u of d elements; sqrt(2 / (pi d)) (1 + 1 / (4 d) + ...)."""
    return exp(lgamma(d / 2) - lgamma((d + 1) / 2)) / sqrt(pi)


def gain(matrix: mx.array) -> float:
    """sqrt(d) / (E|u_1| sum_i ||s_i||): times the root mean square of x, the constant that leaves no bias."""
    d = matrix.shape[1]
    total = cast(float, mx.sum(mx.linalg.norm(matrix, axis=1)).item())
    return sqrt(d) / (mean_projection(d) * total)


def estimate(q: mx.array, signs: mx.array, scales: mx.array, matrix: mx.array, gqa_ratio: int) -> mx.array:
    """Estimates of <q, x>, float32 [n_q_heads, queries, tokens], from q [n_q_heads, queries, head_dim].

    signs [n_kv_heads, tokens, words] and scales [n_kv_heads, tokens] are those of `sketch_signs` with `matrix`.
    """
    *lead, heads, queries, d = q.shape
    # Queries that share a KV head are projected, and meet its signs, together.
    grouped = q.reshape(*lead, heads // gqa_ratio, gqa_ratio * queries, d)
    scores = sketch_scores(grouped, signs, scales, matrix, gain(matrix))
    return scores.reshape(*lead, heads, queries, signs.shape[-2])


def quicker_unsketched(queries: int, tokens: int, rows: int, head_dim: int) -> bool:
    """Whether <q, S.T sign(S x)> takes fewer products than <S q, sign(S x)>, which is the same."""
    return tokens * rows * head_dim + queries * tokens * head_dim < queries * rows * (head_dim + tokens)


@lru_cache(maxsize=64)
def sketch_error(sketch: SignSketch) -> float | None:
    """E||x' - x||**2 / ||x||**2 of x' = ||x|| S.T sign(S x) / (E|u_1| sum_i ||s_i||), for x of random direction.

    Exact for this S: E sign<s_i, x> sign<s_j, x> = (2 / pi) arcsin(cos of the angle of s_i and s_j), and E<x', x> is
    ||x||**2. So it is (2 / pi) sum_ij <s_i, s_j> arcsin(cos_ij) / (E|u_1| sum_i ||s_i||)**2 - 1; it is also
    d * E(<q, x'> - <q, x>)**2 over unit q and x. Orthogonal rows, m <= d: 1 / (m E|u_1|**2) - 1. None for more rows
    than it can be computed for.
    """
    if sketch.rows > _ROWS_IN_THEORY:
        return None
    s = np.array(sketch.matrix(sketch.arrays()), dtype=np.float64)
    norms = np.linalg.norm(s, axis=1)
    total, step = 0.0, 1024
    for start in range(0, len(s), step):
        dots = s[start : start + step] @ s.T
        cosines = np.clip(dots / (norms[start : start + step, None] * norms), -1, 1)
        total += float(np.sum(dots * np.arcsin(cosines)))
    return 2 / pi * total / (mean_projection(sketch.head_dim) * float(norms.sum())) ** 2 - 1


@lru_cache(maxsize=64)
def _arrays(sketch: SignSketch) -> dict[str, mx.array]:
    return sketch.draw()
