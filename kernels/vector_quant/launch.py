"""Checks shapes and dtypes of vector quantisation and calls an implementation."""

from __future__ import annotations

import math
from pathlib import Path

import mlx.core as mx

from tqcli.kernels.bit_pack import words_per_row
from tqcli.kernels.queries import queries_at_once, scores_grid
from tqcli.kernels.runtime import Kernel, Launch, chosen, run, too_large
from tqcli.kernels.runtime.kernel import GROUPS_A_SIDE
from tqcli.kernels.vector_quant import reference

_ENTRIES_AT_MOST = 1 << 16
_FOLDER = Path(__file__).parent
QUANTISE = Kernel(
    name="vector_quantise",
    body=_FOLDER / "vector_quantise.metal",
    inputs=("x", "codebook", "largest", "sizes"),
    outputs=("codes",),
    template=("SUB_DIM", "EACH", "SPLIT", "TILE"),
    headers=("scales.h",),
)
DEQUANTISE = Kernel(
    name="vector_dequantise",
    body=_FOLDER / "vector_dequantise.metal",
    inputs=("codes", "codebook", "sizes"),
    outputs=("y",),
    template=("SUB_DIM", "SHARED"),
)
TABLES = Kernel(
    name="vector_tables",
    body=_FOLDER / "vector_tables.metal",
    inputs=("q", "codebook", "sizes"),
    outputs=("tables",),
    template=("D", "SUB_DIM", "QUERIES"),
)
SCORES = Kernel(
    name="vector_scores",
    body=_FOLDER / "vector_scores.metal",
    inputs=("tables", "words", "sizes"),
    outputs=("scores",),
    template=("PARTS", "BITS", "QUERIES"),
    headers=("bits.h",),
)
_SUB_DIM_AT_MOST = 32
"""A thread of the search holds its sub-vectors in registers."""
_TILE_ELEMENTS = 1 << 11
"""Of the entries in the threadgroup's memory at a time, at most: 8 KB, and up to as much for their norms."""
_QUANTISE_THREADS, _THREADS, _LANES = 128, 256, 32
_SPLIT_BELOW = 1 << 15
"""Sub-vectors below which the lanes of a simdgroup share out the entries: a thread each would leave a GPU idle."""
_TABLES_AT_ONCE = 1 << 26
"""Elements of the tables of one launch, about: 256 MB."""
_THREADS_AT_MOST = 1 << 30
_INT32_MAX = 2**31 - 1


def vector_quantise(x: mx.array, codebook: mx.array, backend: str | None = None) -> mx.array:
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
    taken = chosen(QUANTISE.name, x.size, backend, _quantise_unsupported(x, codebook))
    if taken == "mlx":
        return reference.vector_quantise(x, codebook)
    heads = codebook.shape[0] if codebook.ndim == 3 else 1
    return run(quantise_launch(x.reshape(heads, -1, x.shape[-1]), codebook), taken)[0].reshape(x.shape[:-1])


def vector_dequantise(codes: mx.array, codebook: mx.array, backend: str | None = None) -> mx.array:
    """Looks codes up: uint8 or uint16 [..., n] in codebook [entries, sub_dim] to float32 [..., n, sub_dim].

    With a codebook a head, [heads, entries, sub_dim], codes are [heads, n]. Codes must be below the number of entries.
    Raises `ValueError` for shapes or dtypes that don't fit.
    """
    _check_codebook(codebook)
    if codes.dtype not in (mx.uint8, mx.uint16) or codes.ndim < 1:
        raise ValueError(f"codes must be uint8 or uint16 [..., n], not {codes.dtype} of shape {codes.shape}")
    if codebook.ndim == 3 and (codes.ndim != 2 or codes.shape[0] != codebook.shape[0]):
        raise ValueError(f"codes {codes.shape} must be [{codebook.shape[0]}, n] for codebooks {codebook.shape}")
    taken = chosen(DEQUANTISE.name, codes.size * codebook.shape[-1], backend, _dequantise_unsupported(codes, codebook))
    if taken == "mlx":
        return reference.vector_dequantise(codes, codebook)
    heads = codebook.shape[0] if codebook.ndim == 3 else 1
    return run(dequantise_launch(codes.reshape(heads, -1), codebook), taken)[0].reshape(*codes.shape, -1)


def vector_scores(q: mx.array, words: mx.array, codebook: mx.array, bits: int, backend: str | None = None) -> mx.array:
    """<q, y> of every query with every token's vector y of coded sub-vectors, which are not decoded.

    q: float32 [..., n_q_heads, queries, d], whose head h reads KV head h // (n_q_heads / n_kv_heads); words: uint32
    [..., n_kv_heads, tokens, words], codes of `bits` bits as `pack_bits` packs them; codebook: float
    [2**bits, sub_dim], or one a KV head, [n_kv_heads, 2**bits, sub_dim]. Returns float32
    [..., n_q_heads, queries, tokens]; float64 if q is. The kernels look up a query's products with all entries
    (VecInfer, arXiv 2510.06175). Raises `ValueError` for shapes or dtypes that don't fit.
    """
    _check_codebook(codebook)
    _check_scores(q, words, codebook, bits)
    taken = chosen(SCORES.name, words.size * 32, backend, _scores_unsupported(q, words, codebook))
    if taken == "mlx":
        return reference.vector_scores(q, words, codebook, bits)
    *lead, heads, queries, d = q.shape
    rows = words.reshape(-1, *words.shape[-2:])
    # Queries that share a KV head share its tables' rows.
    grouped = q.reshape(rows.shape[0], -1, d)
    step = _queries_a_launch(rows.shape[0], grouped.shape[1], d // codebook.shape[-1], codebook.shape[-2])
    parts = []
    for start in range(0, grouped.shape[1], step):
        some = grouped[:, start : start + step]
        (tables,) = run(tables_launch(some, codebook), taken)
        parts += run(scores_launch(tables, rows, some.shape[1], bits), taken)
    return mx.concatenate(parts, axis=1).reshape(*lead, heads, queries, words.shape[-2])


def quantise_launch(x: mx.array, codebook: mx.array, split: bool | None = None) -> Launch:
    """Codes [heads, n] of x [heads, n, sub_dim] by codebook [entries, sub_dim], if heads is 1, or one a head.

    `split` has a simdgroup share out the entries; left out, it does where there are few sub-vectors.
    """
    (heads, n, sub_dim), entries = x.shape, codebook.shape[-2]
    split = heads * n < _SPLIT_BELOW if split is None else split
    each = 1 if split else 4 if sub_dim <= 8 else 2
    at_once = _QUANTISE_THREADS // _LANES if split else _QUANTISE_THREADS * each
    tile = _TILE_ELEMENTS >> (sub_dim - 1).bit_length()
    largest = mx.max(mx.abs(codebook.reshape(heads, -1)), axis=-1).astype(mx.float32)
    return Launch(
        kernel=QUANTISE,
        inputs=(x, codebook, largest, mx.array([n, entries], dtype=mx.int32)),
        template={"SUB_DIM": sub_dim, "EACH": each, "SPLIT": _LANES if split else 1, "TILE": tile},
        grid=(-(-n // at_once) * _QUANTISE_THREADS, heads, 1),
        threadgroup=(_QUANTISE_THREADS, 1, 1),
        output_shapes=((heads, n),),
        output_dtypes=(mx.uint8 if entries <= 256 else mx.uint16,),
        note=f"{x.dtype} [{heads}, {n}, {sub_dim}], {entries} entries, {'split' if split else 'whole'}",
    )


def dequantise_launch(codes: mx.array, codebook: mx.array) -> Launch:
    """Entries float32 [heads, n, sub_dim] of codes [heads, n]."""
    (heads, n), (entries, sub_dim) = codes.shape, codebook.shape[-2:]
    threads = -(-min(n * sub_dim, _THREADS_AT_MOST) // _THREADS) * _THREADS
    return Launch(
        kernel=DEQUANTISE,
        inputs=(codes, codebook, mx.array([n, entries, threads], dtype=mx.int32)),
        template={"SUB_DIM": sub_dim, "SHARED": codebook.ndim == 2},
        grid=(threads, heads, 1),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=((heads, n, sub_dim),),
        output_dtypes=(mx.float32,),
        note=f"{codes.dtype} [{heads}, {n}], {codebook.dtype} codebook {list(codebook.shape)}",
    )


def tables_launch(q: mx.array, codebook: mx.array) -> Launch:
    """Products float32 [heads, blocks, sub-vectors, entries, queries of a block] of q [heads, queries, d], float32.

    Where there is a codebook a KV head, head h takes that of h modulo their number.
    """
    (heads, queries, d), (entries, sub_dim) = q.shape, codebook.shape[-2:]
    books = codebook.shape[0] if codebook.ndim == 3 else 1
    parts, at_once = d // sub_dim, queries_at_once(queries)
    return Launch(
        kernel=TABLES,
        inputs=(q, codebook, mx.array([queries, entries, books], dtype=mx.int32)),
        template={"D": d, "SUB_DIM": sub_dim, "QUERIES": at_once},
        grid=_tables_grid(heads, queries, parts, entries),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=((heads, -(-queries // at_once), parts, entries, at_once),),
        output_dtypes=(mx.float32,),
        note=f"q {list(q.shape)}, {codebook.dtype} codebook {list(codebook.shape)}",
    )


def scores_launch(tables: mx.array, words: mx.array, queries: int, bits: int) -> Launch:
    """Scores float32 [heads, queries, tokens] from what `tables_launch` gives and words [heads, tokens, words]."""
    heads, _, parts, _, at_once = tables.shape
    tokens = words.shape[1]
    return Launch(
        kernel=SCORES,
        inputs=(tables, words, mx.array([queries, tokens], dtype=mx.int32)),
        template={"PARTS": parts, "BITS": bits, "QUERIES": at_once},
        grid=scores_grid(heads, queries, tokens, _THREADS),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=((heads, queries, tokens),),
        output_dtypes=(mx.float32,),
        note=f"{heads} heads, {queries} queries, {tokens} tokens, {parts} codes of {bits} bits",
    )


def _tables_grid(heads: int, queries: int, parts: int, entries: int) -> tuple[int, int, int]:
    return -(-entries // _THREADS) * _THREADS, parts * -(-queries // queries_at_once(queries)), heads


def _queries_a_launch(heads: int, queries: int, parts: int, entries: int) -> int:
    """Queries whose tables are looked up at a time: as many blocks of them as fit memory and a grid, at least one."""
    at_once = queries_at_once(queries)
    return max(1, min(_TABLES_AT_ONCE // (heads * parts * entries * at_once), GROUPS_A_SIDE // parts)) * at_once


def _quantise_unsupported(x: mx.array, codebook: mx.array) -> str | None:
    if x.size == 0:
        return "there is nothing to do"
    if mx.float64 in (x.dtype, codebook.dtype):
        return "float64"
    if x.shape[-1] > _SUB_DIM_AT_MOST:
        return f"sub-vectors of more than {_SUB_DIM_AT_MOST} elements"
    return _too_many(codebook.shape[0] if codebook.ndim == 3 else 1, x.size // x.shape[-1])


def _dequantise_unsupported(codes: mx.array, codebook: mx.array) -> str | None:
    if codes.size == 0:
        return "there is nothing to do"
    if codebook.dtype == mx.float64:
        return "float64"
    return _too_many(codebook.shape[0] if codebook.ndim == 3 else 1, codes.size)


def _scores_unsupported(q: mx.array, words: mx.array, codebook: mx.array) -> str | None:
    if q.size == 0 or words.size == 0:
        return "there is nothing to do"
    if mx.float64 in (q.dtype, codebook.dtype):
        return "float64"
    if q.dtype != mx.float32:
        return f"queries of {q.dtype}"
    heads, (entries, sub_dim) = math.prod(words.shape[:-2]), codebook.shape[-2:]
    queries, parts = q.size // q.shape[-1] // heads, q.shape[-1] // sub_dim
    some = min(queries, _queries_a_launch(heads, queries, parts, entries))
    grids = _tables_grid(heads, some, parts, entries), scores_grid(heads, some, words.shape[-2], _THREADS)
    return too_large(grids[0], (_THREADS, 1, 1)) or too_large(grids[1], (_THREADS, 1, 1))


def _too_many(heads: int, rows: int) -> str | None:
    """Of launches with a head a threadgroup along y, and few enough threads along x for as many rows as int32 holds."""
    return "2**31 rows or more" if rows > _INT32_MAX else too_large((_THREADS, heads, 1), (_THREADS, 1, 1))


def _check_scores(q: mx.array, words: mx.array, codebook: mx.array, bits: int) -> None:
    entries, sub_dim = codebook.shape[-2:]
    if not 1 <= bits <= 16 or entries != 1 << bits:
        raise ValueError(f"codes of {bits} bits don't fit a codebook of {entries} entries")
    if words.dtype != mx.uint32 or words.ndim < 3:
        raise ValueError(f"words must be uint32 [..., heads, tokens, words], not {words.dtype} of shape {words.shape}")
    if not mx.issubdtype(q.dtype, mx.floating) or q.ndim != words.ndim or q.shape[:-3] != words.shape[:-3]:
        raise ValueError(f"q {q.dtype} {q.shape} doesn't fit words {words.shape}")
    d, heads = q.shape[-1], words.shape[-3]
    if d < 1 or d % sub_dim or words.shape[-1] != words_per_row(d // sub_dim, bits):
        raise ValueError(f"words {words.shape} are not rows of {d} elements in codes of {bits} bits for {sub_dim} each")
    if heads < 1 or q.shape[-3] % heads or (codebook.ndim == 3 and codebook.shape[0] != heads):
        raise ValueError(f"q {q.shape}, words {words.shape} and codebook {codebook.shape} don't agree on the heads")


def _check_codebook(codebook: mx.array) -> None:
    if codebook.ndim not in (2, 3) or 0 in codebook.shape or not mx.issubdtype(codebook.dtype, mx.floating):
        raise ValueError(
            "codebook must be a float array [entries, sub_dim] or [heads, entries, sub_dim], "
            f"not {codebook.dtype} of shape {codebook.shape}"
        )
    if codebook.shape[-2] > _ENTRIES_AT_MOST:
        raise ValueError(f"a codebook has at most {_ENTRIES_AT_MOST} entries, not {codebook.shape[-2]}")
