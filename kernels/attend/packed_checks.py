"""Whether what a reader is made of fits together: the kernel reads where the shapes say, unasked."""

from __future__ import annotations

import mlx.core as mx

from tqcli.kernels.attend.packed import codes_of
from tqcli.kernels.attend.readers import Groups, Levels, Packed, Reader, Vectors
from tqcli.kernels.bit_pack import words_per_row
from tqcli.kernels.scales import has_embedded_scale

_FLOATS = (mx.float16, mx.bfloat16, mx.float32)
_GROUP_BITS, _GROUP_SIZES = (2, 3, 4, 5, 6, 8), (32, 64, 128)
"""Those of `mx.quantize` in its mode `affine`."""
_CODE_BITS_AT_MOST = 16


def check_reader(name: str, reader: Reader, vectors: int, d: int) -> None:
    """Raises `ValueError` where codes, scales, tables, matrix, gains or offset aren't those of `vectors` of d channels.

    name: of what is read, for the message.
    """
    codes = codes_of(reader.packed)
    if codes.ndim != 3 or codes.dtype != mx.uint32:
        raise ValueError(f"codes of {name} must be uint32 [vectors, tokens, words], not {_told(codes)}")
    if codes.shape[0] != vectors:
        raise ValueError(f"codes of {name} are of {codes.shape[0]} vectors, not {vectors}")
    lead = codes.shape[:2]
    _check_packed(name, reader.packed, lead)
    if reader.sketch is not None:
        if not isinstance(reader.packed, Levels) or len(reader.packed.bits) > 1:
            raise ValueError(f"a sketch goes with levels of one plane, not with {type(reader.packed).__name__}")
        if reader.sketch.bits != (1,) or reader.sketch.scales is None:
            raise ValueError(f"{name}: a sketch has 1 bit and scales of its own, not {reader.sketch.bits} bits")
        _check_levels(f"sketches of {name}", reader.sketch, lead)
    if reader.matrix is None and reader.dims != d:
        raise ValueError(f"{name} of {reader.dims} coded elements and {d} channels need a matrix")
    if reader.matrix is not None:
        _must_be(f"the matrix of {name}", reader.matrix, (reader.dims, d), (mx.float32,))
    if reader.gains is not None:
        _must_be(f"gains of {name}", reader.gains, (vectors, 1, d))
    if reader.offset is not None:
        _must_be(f"the mean of {name}", reader.offset.mean, (vectors, 1, d))
        if 2 * len(reader.offset.frequencies) > d:
            raise ValueError(f"{name}: {len(reader.offset.frequencies)} pairs of {d} channels can't turn")


def _check_packed(name: str, packed: Packed, lead: tuple[int, ...]) -> None:
    if isinstance(packed, Levels):
        _check_levels(name, packed, lead)
    elif isinstance(packed, Groups):
        _check_groups(name, packed, lead)
    else:
        _check_vectors(name, packed, lead)


def _check_levels(name: str, packed: Levels, lead: tuple[int, ...]) -> None:
    if not 1 <= len(packed.bits) <= 2 or min(packed.bits) < 1 or sum(packed.bits) > 8:
        raise ValueError(f"{name}: one or two planes of 1 to 8 bits in all are needed, not {packed.bits}")
    if packed.levels.shape != (1 << sum(packed.bits),) or packed.levels.dtype != mx.float32:
        raise ValueError(f"{name}: {packed.bits} bits need {1 << sum(packed.bits)} levels, not {_told(packed.levels)}")
    expected = [(*lead, words_per_row(packed.dims, bits)) for bits in packed.bits]
    if [plane.shape for plane in packed.planes] != expected or any(x.dtype != mx.uint32 for x in packed.planes):
        raise ValueError(f"{name}: planes must be uint32 {expected}, not {[_told(x) for x in packed.planes]}")
    if packed.scales is not None:
        _must_be(f"scales of {name}", packed.scales, lead, _FLOATS)
    elif not has_embedded_scale(packed.dims, packed.bits[0]):
        raise ValueError(f"{name}: rows of {packed.dims} codes of {packed.bits[0]} bits have no room for their scales")


def _check_groups(name: str, packed: Groups, lead: tuple[int, ...]) -> None:
    dims, bits, group = packed.dims, packed.bits, packed.group
    if bits not in _GROUP_BITS or group not in _GROUP_SIZES or dims < 1 or dims % group:
        raise ValueError(
            f"{name}: {dims} elements of {bits} bits in groups of {group} are needed as mx.quantize packs them, "
            f"{', '.join(map(str, _GROUP_BITS))} bits in groups of {', '.join(map(str, _GROUP_SIZES))}"
        )
    _must_be(f"codes of {name}", packed.codes, (*lead, dims * bits // 32), (mx.uint32,))
    _must_be(f"scales of {name}", packed.scales, (*lead, dims // group))
    _must_be(f"biases of {name}", packed.biases, (*lead, dims // group), (packed.scales.dtype,))


def _check_vectors(name: str, packed: Vectors, lead: tuple[int, ...]) -> None:
    dims, bits, sub_dim = packed.dims, packed.bits, packed.sub_dim
    if not 1 <= bits <= _CODE_BITS_AT_MOST or sub_dim < 1 or dims < 1 or dims % sub_dim:
        raise ValueError(
            f"{name}: codes of 1 to {_CODE_BITS_AT_MOST} bits for a divisor of {dims} elements are needed, "
            f"not {bits} bits for {sub_dim}"
        )
    _must_be(f"codes of {name}", packed.codes, (*lead, words_per_row(dims // sub_dim, bits)), (mx.uint32,))
    book = (1 << bits, sub_dim)
    _must_be(f"the codebook of {name}", packed.codebook, book if packed.codebook.ndim == 2 else (lead[0], *book))


def _must_be(what: str, x: mx.array, shape: tuple[int, ...], dtypes: tuple[mx.Dtype, ...] = ()) -> None:
    """Of this shape, and of one of these dtypes or, if there are none, any float."""
    if x.shape != shape or (x.dtype not in dtypes if dtypes else not mx.issubdtype(x.dtype, mx.floating)):
        kinds = " or ".join(str(dtype).removeprefix("mlx.core.") for dtype in dtypes) or "float"
        raise ValueError(f"{what} must be {kinds} {shape}, not {_told(x)}")


def _told(x: mx.array) -> str:
    return f"{str(x.dtype).removeprefix('mlx.core.')} {x.shape}"
