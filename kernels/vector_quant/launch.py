"""Checks shapes and dtypes of vector quantisation and calls an implementation."""

from __future__ import annotations

import mlx.core as mx

from tqcli.kernels.vector_quant import reference

_ENTRIES_AT_MOST = 1 << 16


def vector_quantise(x: mx.array, codebook: mx.array) -> mx.array:
    """The index of the codebook entry nearest to each sub-vector of x, by Euclidean distance; ties to the lower one.

    x: float [..., n, sub_dim] with codebook float [entries, sub_dim], or a codebook a head: x [heads, n, sub_dim] with
    codebook [heads, entries, sub_dim]; at most 65536 entries. Computed in float32, or float64 if x is, at any scale
    that float32 holds. Returns [..., n], uint8 for up to 256 entries, else uint16. Where two entries are equally near
    but for float rounding, either may be given. Raises `ValueError` for shapes or dtypes that don't fit.
    """
    _check_codebook(codebook)
    if x.ndim < 2 or not mx.issubdtype(x.dtype, mx.floating):
        raise ValueError(f"x must be a float array [..., n, sub_dim], not {x.dtype} of shape {x.shape}")
    if x.shape[-1] != codebook.shape[-1]:
        raise ValueError(f"sub-vectors of {x.shape[-1]} elements don't fit a codebook of shape {codebook.shape}")
    if codebook.ndim == 3 and (x.ndim != 3 or x.shape[0] != codebook.shape[0]):
        raise ValueError(f"x {x.shape} must be [{codebook.shape[0]}, n, sub_dim] for codebooks {codebook.shape}")
    return reference.vector_quantise(x, codebook)


def vector_dequantise(codes: mx.array, codebook: mx.array) -> mx.array:
    """Looks codes up: uint8 or uint16 [..., n] in codebook [entries, sub_dim] to float32 [..., n, sub_dim].

    With a codebook a head, [heads, entries, sub_dim], codes are [heads, n]. Codes must be below the number of entries.
    Raises `ValueError` for shapes or dtypes that don't fit.
    """
    _check_codebook(codebook)
    if codes.dtype not in (mx.uint8, mx.uint16) or codes.ndim < 1:
        raise ValueError(f"codes must be uint8 or uint16 [..., n], not {codes.dtype} of shape {codes.shape}")
    if codebook.ndim == 3 and (codes.ndim != 2 or codes.shape[0] != codebook.shape[0]):
        raise ValueError(f"codes {codes.shape} must be [{codebook.shape[0]}, n] for codebooks {codebook.shape}")
    return reference.vector_dequantise(codes, codebook)


def _check_codebook(codebook: mx.array) -> None:
    if codebook.ndim not in (2, 3) or 0 in codebook.shape or not mx.issubdtype(codebook.dtype, mx.floating):
        raise ValueError(
            "codebook must be a float array [entries, sub_dim] or [heads, entries, sub_dim], "
            f"not {codebook.dtype} of shape {codebook.shape}"
        )
    if codebook.shape[-2] > _ENTRIES_AT_MOST:
        raise ValueError(f"a codebook has at most {_ENTRIES_AT_MOST} entries, not {codebook.shape[-2]}")
