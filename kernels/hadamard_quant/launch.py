"""Checks shapes and ranges of rotate-and-quantise and calls an implementation.

`hadamard_*` rotate by rounds of random signs and a Hadamard transform, and have kernels. `rotate_*` take any rotation
as a matrix and are plain MLX operations everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from tqcli.kernels.bit_pack import words_per_row
from tqcli.kernels.hadamard_quant import reference
from tqcli.kernels.hadamard_quant.matrix import core_signs, core_size, has_hadamard
from tqcli.kernels.runtime import Kernel, Launch, chosen, run, too_large
from tqcli.kernels.runtime.kernel import unused
from tqcli.kernels.scales import has_embedded_scale

_DENSE = "there is no kernel for a rotation given as a matrix"
_FLOATS = (mx.float16, mx.bfloat16, mx.float32)
_ROUNDS_AT_MOST = 3
_D_AT_MOST = 4096
_GROUP_VECTORS = 4
"""Vectors of a threadgroup, a simdgroup each; fewer where they would take more than a half of its memory."""

QUANTISE = Kernel(
    "hadamard_quantise",
    Path(__file__).with_name("hadamard_quantise.metal"),
    ("x", "offset", "signs", "core", "codebook", "thresholds", "sizes"),
    ("first", "second", "scales"),
    ("D", "M", "ROUNDS", "FIRST", "SECOND", "UNBIASED", "EMBEDDED", "CENTRED", "VECTORS"),
    ("bits.h", "nearest.h", "scales.h", "hadamard.h"),
)
DEQUANTISE = Kernel(
    "hadamard_dequantise",
    Path(__file__).with_name("hadamard_dequantise.metal"),
    ("first", "second", "scales", "signs", "core", "codebook", "sizes"),
    ("y",),
    ("T", "D", "M", "ROUNDS", "FIRST", "SECOND", "EMBEDDED", "VECTORS"),
    ("bits.h", "scales.h", "hadamard.h"),
)


def hadamard_quantise(
    x: mx.array,
    signs: mx.array,
    codebook: mx.array,
    thresholds: mx.array,
    bits: Sequence[int],
    unbiased: bool,
    offset: mx.array | None = None,
    backend: str | None = None,
) -> tuple[tuple[mx.array, ...], mx.array | None]:
    """`rotate_quantise_planes` of x - offset by H S_r ... H S_1, H a Hadamard matrix, S_i the i-th row of signs.

    x: float [..., heads, tokens, d] with d = m * 2**k, m = 1, 12, 20 or 28; signs: int8 +-1 [1 to 3, d]; offset: float
    [1 or heads, 1 or tokens, d], subtracted in float32 (x of two dimensions has one head). One or two planes. On a GPU
    codes may differ from the reference's where an element lies within float32 rounding of a threshold, scales by one
    step of a bfloat16. Raises `ValueError` as `rotate_quantise_planes` does, and for signs or an offset that don't fit.
    """
    d = _check_vectors(x)
    _check_signs(signs, d)
    _check_levels(codebook, bits)
    _check_thresholds(thresholds, codebook)
    _check_two_planes(bits)
    _check_offset(offset, x)
    taken = chosen("hadamard_quantise", x.size, backend, _unsupported(x.size, d, x.dtype, offset))
    if taken == "mlx":
        return reference.hadamard_quantise(x, signs, codebook, thresholds, tuple(bits), unbiased, offset)
    launch = quantise_launch(x, signs, codebook, thresholds, bits, unbiased, offset)
    first, second, scales = run(launch, taken)
    planes = (first,) if len(bits) == 1 else (first, second)
    return planes, None if has_embedded_scale(d, bits[0]) else scales.view(mx.bfloat16)


def hadamard_dequantise(
    planes: Sequence[mx.array],
    scales: mx.array | None,
    signs: mx.array,
    codebook: mx.array,
    bits: Sequence[int],
    dtype: mx.Dtype = mx.float32,
    backend: str | None = None,
) -> mx.array:
    """The inverse of `hadamard_quantise`, without the offset: [..., tokens, d] of a float dtype.

    Raises `ValueError` as `unrotate_dequantise_planes` does, for signs that don't fit, or another dtype.
    """
    d = signs.shape[-1] if signs.ndim else 0
    _check_signs(signs, d)
    _check_levels(codebook, bits)
    _check_two_planes(bits)
    _check_planes(planes, scales, d, bits)
    if dtype not in _FLOATS:
        raise ValueError(f"vectors are decoded as float16, bfloat16 or float32, not {dtype}")
    vectors = planes[0].size // words_per_row(d, bits[0])
    taken = chosen("hadamard_dequantise", vectors * d, backend, _unsupported(vectors * d, d, dtype, scales))
    if taken == "mlx":
        return reference.hadamard_dequantise(tuple(planes), scales, signs, codebook, tuple(bits)).astype(dtype)
    return run(dequantise_launch(planes, scales, signs, codebook, bits, dtype), taken)[0]


def quantise_launch(
    x: mx.array,
    signs: mx.array,
    codebook: mx.array,
    thresholds: mx.array,
    bits: Sequence[int],
    unbiased: bool,
    offset: mx.array | None,
) -> Launch:
    """The launch that codes x, not empty. Outputs: the planes, and the scales' bits (uint16).

    A second plane, or scales, that there are none of is one element, 0.
    """
    *lead, d = x.shape
    embedded = has_embedded_scale(d, bits[0])
    turns = [] if offset is None else offset.shape[:2]
    sizes = mx.array([x.size // d, lead[-1], *turns], dtype=mx.int32)
    template, grid, group = _geometry(signs, bits, x.size // d)
    flags = {"UNBIASED": unbiased, "EMBEDDED": embedded, "CENTRED": offset is not None}
    subtracted = unused(elements=1) if offset is None else offset.astype(mx.float32)
    core = core_signs(core_size(d), inverse=False)
    return Launch(
        QUANTISE,
        [x, subtracted, signs, core, codebook, thresholds, sizes],
        template | flags,
        grid,
        group,
        [
            (*lead, words_per_row(d, bits[0])),
            (*lead, words_per_row(d, bits[1])) if len(bits) == 2 else (1,),
            (1,) if embedded else tuple(lead),
        ],
        [mx.uint32, mx.uint32, mx.uint16],
    )


def dequantise_launch(
    planes: Sequence[mx.array],
    scales: mx.array | None,
    signs: mx.array,
    codebook: mx.array,
    bits: Sequence[int],
    dtype: mx.Dtype,
) -> Launch:
    """The launch that decodes planes, not empty."""
    *lead, width = planes[0].shape
    d = signs.shape[1]
    vectors = planes[0].size // width
    template, grid, group = _geometry(signs, bits, vectors)
    second = planes[1] if len(planes) == 2 else unused(mx.uint32, 1)
    stored = unused(mx.uint16, 1) if scales is None else scales.astype(mx.bfloat16).view(mx.uint16)
    core = core_signs(core_size(d), inverse=True)
    return Launch(
        DEQUANTISE,
        [planes[0], second, stored, signs, core, codebook, mx.array([vectors], dtype=mx.int32)],
        {"T": dtype, **template, "EMBEDDED": scales is None},
        grid,
        group,
        [(*lead, d)],
        [dtype],
    )


def _geometry(
    signs: mx.array, bits: Sequence[int], vectors: int
) -> tuple[dict[str, int | bool | mx.Dtype], tuple[int, int, int], tuple[int, int, int]]:
    """Template parameters that both kernels have, the grid and the threadgroup."""
    rounds, d = signs.shape
    together, grid, group = _grid(vectors, d)
    second = bits[1] if len(bits) == 2 else 0
    template = {"D": d, "M": core_size(d), "ROUNDS": rounds, "FIRST": bits[0], "SECOND": second, "VECTORS": together}
    return dict(template), grid, group


def _grid(vectors: int, d: int) -> tuple[int, tuple[int, int, int], tuple[int, int, int]]:
    """Vectors of a threadgroup, the grid and the threadgroup."""
    together = max(1, min(_GROUP_VECTORS, _D_AT_MOST // d))
    group = 32 * together
    return together, (-(-vectors // together) * group, 1, 1), (group, 1, 1)


def _unsupported(size: int, d: int, dtype: mx.Dtype, other: mx.array | None) -> str | None:
    """Why the kernels can't take so many elements of a dtype in vectors of d, with an offset or with scales."""
    if size == 0:
        return "there is nothing to do"
    if dtype not in _FLOATS:
        return f"there is no kernel for {str(dtype).removeprefix('mlx.core.')}"
    if other is not None and other.dtype == mx.float64:
        return "there is no kernel for float64"
    if d > _D_AT_MOST:
        return f"a vector has more than {_D_AT_MOST} elements"
    _, grid, group = _grid(size // d, d)
    return too_large(grid, group)


def rotate_quantise(
    x: mx.array, rotation: mx.array, codebook: mx.array, bits: int, unbiased: bool
) -> tuple[mx.array, mx.array | None]:
    """Codes vectors: y = rotation @ x / rms(x), each element to its nearest level, packed, with one scale a vector.

    x: float [..., tokens, d]; rotation: float32 [d, d], orthonormal; codebook: float32 [2**bits], ascending, for
    elements of unit variance. Returns uint32 codes [..., tokens, words] and bfloat16 scales [..., tokens], None where
    they lie in the last 16 bits of each row of codes (`has_embedded_scale`). The scale is rms(x) or, if `unbiased`,
    rms(x) * d / <y, level(y)>, which makes <q, decoded> unbiased. A zero vector has scale 0. NaN and inf give a
    non-finite scale. A float64 rotation makes all arithmetic float64. Raises `ValueError` for wrong shapes or dtypes.
    """
    (codes,), scales = rotate_quantise_planes(
        x, rotation, codebook, (codebook[1:] + codebook[:-1]) / 2, (bits,), unbiased
    )
    return codes, scales


def rotate_quantise_planes(
    x: mx.array, rotation: mx.array, codebook: mx.array, thresholds: mx.array, bits: Sequence[int], unbiased: bool
) -> tuple[tuple[mx.array, ...], mx.array | None]:
    """As `rotate_quantise` with explicit thresholds, the codes cut into planes of `bits` bits, the upper bits first.

    An element's code, of sum(bits) bits, is the number of `thresholds` (float32 [2**sum(bits) - 1], ascending) strictly
    below it. Returns the planes, each uint32 [..., tokens, words of its own bits], and the scales, which lie in the
    first plane where that leaves room. Raises `ValueError` as `rotate_quantise` does, or if sum(bits) isn't 1 to 8.
    """
    d = _check_vectors(x)
    _check_rotation(rotation, d, codebook, bits)
    _check_thresholds(thresholds, codebook)
    chosen("rotate_quantise", x.size, unsupported=_DENSE)
    return reference.rotate_quantise(x, rotation, codebook, thresholds, tuple(bits), unbiased)


def unrotate_dequantise(
    codes: mx.array, scales: mx.array | None, rotation: mx.array, codebook: mx.array, bits: int
) -> mx.array:
    """The inverse of `rotate_quantise`: [..., tokens, d] of the rotation's dtype = scale * rotation.T @ level(code).

    Raises `ValueError` where the codes' width doesn't fit the rotation, or scales are given or missing wrongly.
    """
    return unrotate_dequantise_planes((codes,), scales, rotation, codebook, (bits,))


def unrotate_dequantise_planes(
    planes: Sequence[mx.array], scales: mx.array | None, rotation: mx.array, codebook: mx.array, bits: Sequence[int]
) -> mx.array:
    """The inverse of `rotate_quantise_planes`; codebook: float32 [2**sum(bits)]. Raises as `unrotate_dequantise`.

    The first planes alone, with a codebook of 2**(their bits) levels, give a coarser reconstruction.
    """
    d = rotation.shape[-1]
    _check_rotation(rotation, d, codebook, bits)
    _check_planes(planes, scales, d, bits)
    chosen("unrotate_dequantise", planes[0].size, unsupported=_DENSE)
    return reference.unrotate_dequantise(tuple(planes), scales, rotation, codebook, tuple(bits))


def _check_vectors(x: mx.array) -> int:
    """The d of x [..., tokens, d]."""
    d = x.shape[-1] if x.ndim >= 2 else 0
    if d < 1 or not mx.issubdtype(x.dtype, mx.floating):
        raise ValueError(f"x must be a float array [..., tokens, d], not {x.dtype} of shape {x.shape}")
    return d


def _check_rotation(rotation: mx.array, d: int, codebook: mx.array, bits: Sequence[int]) -> None:
    if rotation.shape != (d, d):
        raise ValueError(f"the sides of rotation {rotation.shape} don't fit d = {d}")
    _check_levels(codebook, bits)


def _check_signs(signs: mx.array, d: int) -> None:
    fits = signs.ndim == 2 and 1 <= signs.shape[0] <= _ROUNDS_AT_MOST and signs.shape[1] == d
    if signs.dtype != mx.int8 or not fits:
        raise ValueError(
            f"signs must be int8 [1 to {_ROUNDS_AT_MOST}, d], not {signs.dtype} of shape {signs.shape}, d = {d}"
        )
    if not has_hadamard(d):
        raise ValueError(f"there is no Hadamard matrix of d = {d}: m * 2**k with m = 1, 12, 20 or 28")


def _check_levels(codebook: mx.array, bits: Sequence[int]) -> None:
    total = sum(bits)
    if not bits or min(bits) < 1 or total > 8:
        raise ValueError(f"bits must be 1 to 8 in all, at least 1 a plane, not {tuple(bits)}")
    if codebook.shape != (2**total,) or codebook.dtype != mx.float32:
        raise ValueError(f"levels must be float32 for bits = {total}, not {codebook.dtype} of shape {codebook.shape}")


def _check_thresholds(thresholds: mx.array, codebook: mx.array) -> None:
    if thresholds.shape != (codebook.size - 1,) or thresholds.dtype != mx.float32:
        raise ValueError(
            f"{codebook.size} levels have {codebook.size - 1} thresholds, float32, "
            f"not {thresholds.dtype} of shape {thresholds.shape}"
        )


def _check_two_planes(bits: Sequence[int]) -> None:
    if len(bits) > 2:
        raise ValueError(f"codes are cut into one or two planes, not {len(bits)}")


def _check_planes(planes: Sequence[mx.array], scales: mx.array | None, d: int, bits: Sequence[int]) -> None:
    if len(planes) != len(bits):
        raise ValueError(f"{len(bits)} planes are needed for bits {tuple(bits)}, not {len(planes)}")
    for codes, b in zip(planes, bits, strict=True):
        if codes.dtype != mx.uint32 or codes.ndim < 2 or codes.shape[-1] != words_per_row(d, b):
            raise ValueError(f"codes {codes.dtype} {codes.shape} are not rows of {d} codes of {b} bits")
        if codes.shape[:-1] != planes[0].shape[:-1]:
            raise ValueError(f"planes {planes[0].shape} and {codes.shape} are not of the same vectors")
    if (scales is None) != has_embedded_scale(d, bits[0]):
        raise ValueError(f"d = {d}, bits = {bits[0]}: scales must be {'absent' if scales is not None else 'given'}")
    if scales is not None and (scales.shape != planes[0].shape[:-1] or not mx.issubdtype(scales.dtype, mx.floating)):
        raise ValueError(f"scales {scales.dtype} {scales.shape} don't fit codes {planes[0].shape}")


def _check_offset(offset: mx.array | None, x: mx.array) -> None:
    if offset is None:
        return
    heads = x.shape[-3] if x.ndim > 2 else 1
    fits = offset.ndim == 3 and all(n in (1, m) for n, m in zip(offset.shape, (heads, x.shape[-2]), strict=False))
    if not fits or offset.shape[-1] != x.shape[-1] or not mx.issubdtype(offset.dtype, mx.floating):
        raise ValueError(f"an offset {offset.dtype} {offset.shape} can't be subtracted from x {x.shape}")
