"""Arrays and template parameters by which the kernel reads each kind of packed tokens."""

from __future__ import annotations

import mlx.core as mx

from tqcli.kernels.attend.prepare import coded_queries, key_table, offset_terms, products
from tqcli.kernels.attend.readers import Groups, Levels, Packed, Reader, Tokens, Vectors
from tqcli.kernels.runtime.kernel import Parameter, unused

_KINDS: dict[type, int] = {Levels: 0, Groups: 1, Vectors: 2}


def key_inputs(q: mx.array, reader: Reader) -> list[mx.array]:
    """The kernel's `queries` and its arrays of keys but for the raw ones; q float32 [vectors, rows, head_dim]."""
    codes, codes2, scales, scales2 = _arrays(reader.packed)
    if reader.sketch is not None:
        codes2, scales2 = reader.sketch.planes[0], _scales(reader.sketch)
    queries, table = coded_queries(q, reader), unused()
    terms = offset_terms(q, reader.offset)
    if isinstance(reader.packed, Vectors):
        return [terms, codes, codes2, scales, scales2, products(queries, reader.packed)]
    if isinstance(reader.packed, Levels):
        table = key_table(reader)
    return [mx.concatenate([queries, terms], axis=-1), codes, codes2, scales, scales2, table]


def value_inputs(reader: Reader) -> tuple[list[mx.array], int]:
    """The kernel's arrays of values but for the raw ones, and the floats between two vectors' codebooks."""
    packed, table, step = reader.packed, unused(), 0
    if isinstance(packed, Levels):
        table = packed.levels
    elif isinstance(packed, Vectors):
        table = packed.codebook.astype(mx.float32).reshape(-1)
        step = table.size // packed.codes.shape[0] if packed.codebook.ndim == 3 else 0
    return [*_arrays(packed), table], step


def key_template(reader: Reader) -> dict[str, Parameter]:
    """The template parameters that say how keys are read."""
    packed = reader.packed
    bits, bits2, group, inline = _shape(packed)
    return {
        "PAIRS": 0 if reader.offset is None else len(reader.offset.frequencies),
        "KEY_KIND": _KINDS[type(packed)],
        "K_DIMS": packed.dims,
        "K_BITS": bits,
        "K_BITS2": bits2,
        "K_SIGNS": 0 if reader.sketch is None else reader.sketch.dims,
        "K_GROUP": group,
        "K_LEVELS": key_table(reader).size if isinstance(packed, Levels) else 1,
        "K_INLINE": inline,
        "K_T": _arrays(packed)[2].dtype,
    }


def value_template(packed: Packed) -> dict[str, Parameter]:
    """The template parameters that say how values are read."""
    bits, bits2, group, inline = _shape(packed)
    return {
        "VALUE_KIND": _KINDS[type(packed)],
        "V_BITS": bits,
        "V_BITS2": bits2,
        "V_GROUP": group,
        "V_LEVELS": packed.levels.size if isinstance(packed, Levels) else 1,
        "V_INLINE": inline,
        "V_T": _arrays(packed)[2].dtype,
    }


def codes_of(packed: Packed) -> mx.array:
    """The codes [vectors, capacity, words], of the first plane where there are two."""
    return packed.planes[0] if isinstance(packed, Levels) else packed.codes


def floats_of(tokens: Tokens) -> list[mx.array]:
    """Arrays that may be of any float, some of which the kernel isn't given as they are."""
    reader, packed = tokens.reader, tokens.reader.packed
    given = [tokens.raw.x, reader.gains, None if reader.offset is None else reader.offset.mean]
    given += [packed.scales] if isinstance(packed, Groups) else [packed.codebook] if isinstance(packed, Vectors) else []
    return [x for x in given if x is not None]


def present(x: mx.array) -> mx.array:
    """The array, or one of zeros in the place of one without elements, which a kernel doesn't take."""
    return x if x.size else unused(x.dtype)


def _shape(packed: Packed) -> tuple[int, int, int, bool]:
    """Bits of the first and second plane, the elements of a group or sub-vector, and whether scales lie in codes."""
    if isinstance(packed, Levels):
        return packed.bits[0], sum(packed.bits[1:]), 1, packed.scales is None
    return packed.bits, 0, packed.group if isinstance(packed, Groups) else packed.sub_dim, False


def _arrays(packed: Packed) -> list[mx.array]:
    """Codes, those of the second plane, scales, and biases; something in the place of each that there isn't."""
    if isinstance(packed, Levels):
        second = packed.planes[1] if len(packed.planes) > 1 else unused(mx.uint32)
        return [packed.planes[0], second, _scales(packed), unused()]
    if isinstance(packed, Groups):
        return [packed.codes, unused(mx.uint32), packed.scales, packed.biases]
    return [packed.codes, unused(mx.uint32), unused(), unused()]


def _scales(packed: Levels) -> mx.array:
    return unused() if packed.scales is None else packed.scales
