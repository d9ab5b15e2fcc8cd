"""Small launches of the Hadamard quantisation kernels with the outputs they must have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from tqcli.kernels.bit_pack.reference import unpack_bits
from tqcli.kernels.hadamard_quant import reference
from tqcli.kernels.hadamard_quant.launch import dequantise_launch, quantise_launch
from tqcli.kernels.hadamard_quant.matrix import hadamard_matrix
from tqcli.kernels.runtime.case import Case, scales_differ
from tqcli.kernels.scales import has_embedded_scale

Array = np.ndarray[Any, np.dtype[Any]]
FLOAT_ERROR = 1e-5
"""How far from a threshold, in units of a vector's root mean square, an element's code may fall either way."""
BOUNDARY_AT_MOST = 0.01
"""The greatest part of codes that may differ for that reason, of many; of few, two may."""
_ROUNDING = {mx.float32: 0.0, mx.float16: 2.0**-10, mx.bfloat16: 2.0**-7}
"""The relative error of a decoded element that its dtype allows."""


@dataclass(frozen=True)
class Setting:
    """What one case is made from."""

    shape: tuple[int, ...]
    bits: tuple[int, ...]
    dtype: mx.Dtype = mx.float32
    rounds: int = 1
    unbiased: bool = False
    offset: tuple[int, ...] | None = None
    """Shape of what is subtracted."""
    special: bool = False
    """Whether some vectors are zero, huge, tiny or not finite."""

    @property
    def note(self) -> str:
        parts = [f"{list(self.shape)} {self.dtype}", f"bits {'+'.join(map(str, self.bits))}"]
        parts += [f"{self.rounds} rounds"] if self.rounds > 1 else []
        parts += ["unbiased"] if self.unbiased else []
        parts += [f"offset {list(self.offset)}"] if self.offset else []
        return ", ".join(parts + (["special vectors"] if self.special else []))


SETTINGS = (
    Setting((7, 32), (1,)),
    Setting((5, 64), (4,), mx.float16, unbiased=True),
    Setting((3, 80), (3,), mx.bfloat16, unbiased=True),
    Setting((3, 80), (2,), rounds=2),
    Setting((5, 96), (2, 2), mx.float16),
    Setting((1, 2, 3, 128), (3, 2), unbiased=True),
    Setting((5, 128), (8,), mx.bfloat16, rounds=3),
    Setting((1, 112), (2, 1), rounds=3, unbiased=True),
    Setting((3, 192), (5,), mx.float16),
    Setting((2, 256), (6,), mx.bfloat16, unbiased=True),
    Setting((2, 3, 64), (3,), mx.bfloat16, offset=(2, 1, 64)),
    Setting((2, 2, 3, 64), (4, 4), offset=(2, 3, 64)),
    Setting((9, 64), (3,), unbiased=True, special=True),
    Setting((9, 80), (1,), special=True),
    Setting((3, 12), (7,), rounds=2),
    Setting((2, 40), (3,)),
    Setting((5, 4), (2,)),
)


def cases() -> Iterator[Case]:
    """Each setting, coded and decoded."""
    for seed, setting in enumerate(SETTINGS):
        yield from _both_ways(setting, seed)


def _both_ways(setting: Setting, seed: int) -> Iterator[Case]:
    d, bits = setting.shape[-1], setting.bits
    rng = np.random.default_rng(seed)
    x = mx.array(_vectors(rng, setting)).astype(setting.dtype)
    offset = None if setting.offset is None else mx.array(rng.standard_normal(setting.offset), dtype=mx.float32)
    signs = mx.array((rng.integers(0, 2, (setting.rounds, d)) * 2 - 1).astype(np.int8))
    codebook = mx.array(np.sort(rng.standard_normal(2 ** sum(bits))), dtype=mx.float32)
    thresholds = (codebook[1:] + codebook[:-1]) / 2
    planes, scales = reference.hadamard_quantise(x, signs, codebook, thresholds, bits, setting.unbiased, offset)
    launch = quantise_launch(x, signs, codebook, thresholds, bits, setting.unbiased, offset)
    no_plane, no_scales = mx.zeros((1,), dtype=mx.uint32), mx.zeros((1,), dtype=mx.uint16)
    expected = [
        *(planes if len(planes) == 2 else (planes[0], no_plane)),
        no_scales if scales is None else scales.view(mx.uint16),
    ]
    centred = _wide(x) if offset is None else _wide(x) - _wide(offset)
    y = _normalised(centred @ _wide(hadamard_matrix(signs)).T)
    allowed = NearThresholds(y, np.array(thresholds), bits)
    yield Case("hadamard_quant", replace(launch, note=setting.note), lambda: expected, allowed)
    decode = dequantise_launch(planes, scales, signs, codebook, bits, setting.dtype)
    yield Case(
        "hadamard_quant",
        replace(decode, note=setting.note),
        lambda: [reference.hadamard_dequantise(planes, scales, signs, codebook, bits).astype(setting.dtype)],
        partial(near_vectors, rounding=_ROUNDING[setting.dtype]),
    )


@dataclass(frozen=True)
class NearThresholds:
    """Differs where a code is another one though its element is clearly between thresholds, or a scale by two steps.

    y [..., d]: elements in units of the vector's root mean square, float64, NaN for a vector that isn't finite.
    Outputs are those of `quantise_launch`.
    """

    y: Array
    thresholds: Array
    bits: tuple[int, ...]

    def __call__(self, outputs: Any, expected: Any) -> str | None:
        for n, (a, b) in enumerate(zip(outputs, expected, strict=True)):
            if a.shape != b.shape:
                return f"output {n}: shape {a.shape}, not {b.shape}"
        if found := scales_differ(self.scales(outputs), self.scales(expected)):
            return found
        codes, wanted = self.codes(outputs), self.codes(expected)
        differs = codes != wanted
        clear = differs & ~self._between_is_near(codes, wanted)
        if clear.any():
            at = tuple(np.argwhere(clear)[0])
            return f"code {list(map(int, at))} of y = {self.y[at]:.7g} is {codes[at]}, not {wanted[at]}"
        if differs.sum() > max(2, BOUNDARY_AT_MOST * differs.size):
            at = tuple(np.argwhere(differs)[0])
            first = f"first code {list(map(int, at))}, which is {codes[at]}, not {wanted[at]}"
            return f"{int(differs.sum())} of {differs.size} codes differ, if only near thresholds, {first}"
        rest, right = self._padding(outputs), self._padding(expected)
        if (rest == right).all():
            return None
        return f"what isn't a code or a scale is {rest[rest != right][0]}, not {right[rest != right][0]}"

    def codes(self, outputs: Any) -> Array:
        """The codes, int64 [..., d]."""
        codes = np.zeros(self.y.shape, dtype=np.int64)
        for plane, bits in zip(outputs, self.bits, strict=False):
            codes = codes << bits | np.array(unpack_bits(mx.array(plane), bits, self.y.shape[-1]))
        return codes

    def scales(self, outputs: Any) -> Array:
        """The scales' bits, uint16 [...]."""
        if has_embedded_scale(self.y.shape[-1], self.bits[0]):
            return np.asarray(outputs[0][..., -1] >> 16, dtype=np.uint16)
        return np.asarray(outputs[2], dtype=np.uint16)

    def boundary_codes(self, outputs: Any, expected: Any) -> tuple[int, int]:
        """How many codes differ, and of how many."""
        differs = self.codes(outputs) != self.codes(expected)
        return int(differs.sum()), differs.size

    def _between_is_near(self, a: Array, b: Array) -> Array:
        """Whether all thresholds between two codes lie within float error of y."""
        low, high = np.minimum(a, b), np.maximum(a, b)
        last = len(self.thresholds) - 1
        ends = [np.abs(self.y - self.thresholds[np.minimum(k, last)]) for k in (low, np.maximum(high - 1, 0))]
        return np.asarray(np.maximum(*ends) <= FLOAT_ERROR)

    def _padding(self, outputs: Any) -> Array:
        """Bits beyond the codes (and beyond an embedded scale), and outputs that stand for nothing."""
        d = self.y.shape[-1]
        embedded = has_embedded_scale(d, self.bits[0])
        parts = []
        for n, (plane, bits) in enumerate(zip(outputs, self.bits, strict=False)):
            used = d * bits - 32 * (plane.shape[-1] - 1)
            last = plane[..., -1] & 0xFFFF if embedded and n == 0 else plane[..., -1]
            parts.append((last.astype(np.uint64) >> np.uint64(used)).reshape(-1))
        parts += [outputs[1].reshape(-1)] if len(self.bits) == 1 else []
        parts += [outputs[2].reshape(-1)] if embedded else []
        return np.concatenate([part.astype(np.uint64) for part in parts])


def near_vectors(outputs: Any, expected: Any, rounding: float) -> str | None:
    """Differs where an element is off by more than float error, in terms of its vector's root mean square."""
    a, b = (np.asarray(arrays[0], dtype=np.float64) for arrays in (outputs, expected))
    if a.shape != b.shape:
        return f"shape {a.shape}, not {b.shape}"
    rms = np.sqrt(np.mean(b**2, axis=-1, keepdims=True))
    with np.errstate(invalid="ignore"):
        agree = np.abs(a - b) <= rounding * np.abs(b) + FLOAT_ERROR * rms
    bad = np.argwhere(~np.where(np.isfinite(rms), agree, np.isnan(a) == np.isnan(b)))
    if not len(bad):
        return None
    at = tuple(bad[0])
    return f"{len(bad)} of {a.size} elements differ, first at {bad[0].tolist()}: {a[at]:.7g}, not {b[at]:.7g}"


def _vectors(rng: np.random.Generator, setting: Setting) -> Array:
    x = rng.standard_normal(setting.shape).astype(np.float32)
    if setting.special:
        x[0] = 0
        x[1] *= 1e30
        x[2] *= 1e-30
        x[3, 5] = np.inf
        x[4, 1] = np.nan
        x[5] *= np.finfo(np.float32).max / np.abs(x[5]).max()
        x[5, 7] = np.finfo(np.float32).max
        x[6] = np.where(np.arange(x.shape[-1]) == 3, 2.0**-120, 0)  # not smaller: a GPU may take such for 0
    return x


def _wide(x: mx.array) -> Array:
    return np.array(x.astype(mx.float32)).astype(np.float64)


def _normalised(y: Array) -> Array:
    rms = np.sqrt(np.mean(y**2, axis=-1, keepdims=True))
    with np.errstate(invalid="ignore"):
        return np.asarray(y / np.where(rms == 0, 1, rms))
