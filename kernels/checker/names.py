"""Names and template values that no kernel can have: they would break the signature that MLX writes around a body."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from tqcli.kernels.runtime.attributes import METAL_ATTRIBUTES
from tqcli.kernels.runtime.kernel import Parameter

_CPP = re.compile(
    r"alignas|alignof|and|and_eq|asm|auto|bitand|bitor|bool|break|case|catch|char|char16_t|char32_t|class|compl"
    r"|const|const_cast|constexpr|continue|decltype|default|delete|do|double|dynamic_cast|else|enum|explicit|export"
    r"|extern|false|float|for|friend|goto|if|inline|int|long|mutable|namespace|new|noexcept|not|not_eq|nullptr"
    r"|operator|or|or_eq|private|protected|public|register|reinterpret_cast|return|short|signed|sizeof|static"
    r"|static_assert|static_cast|struct|switch|template|this|thread_local|throw|true|try|typedef|typeid|typename"
    r"|union|unsigned|using|virtual|void|volatile|wchar_t|while|xor|xor_eq"
)
_METAL = re.compile(
    r"device|constant|thread|threadgroup|threadgroup_imageblock|kernel|vertex|fragment|metal|NULL"
    r"|(bool|u?char|u?short|u?int|u?long|half|float|bfloat)[234]?(x[234])?"
    r"|size_t|ptrdiff_t|u?int(8|16|32|64)_t|b?float16_t"
    r"|NAN|INFINITY|MAXFLOAT|MAXHALF|HUGE_VAL[FH]"
    r"|(FLT|HALF)_(DIG|MANT_DIG|(MAX|MIN)(_10)?_EXP|RADIX|MAX|MIN|EPSILON)"
    r"|M_(E|LOG2E|LOG10E|LN2|LN10|PI|PI_2|PI_4|1_PI|2_PI|2_SQRTPI|SQRT2|SQRT1_2)_[FH]"
    r"|(CHAR|SCHAR|UCHAR|SHRT|USHRT|INT|UINT|LONG|ULONG)_(BIT|MAX|MIN)"
)
_OURS = re.compile(r"(tq|TQ)_\w*|_[A-Z_]\w*|\w*__\w*")
_SUFFIXES = ("_shape", "_strides", "_ndim")
_LEAST, _MOST = -(2**31), 2**31 - 1


def refuse_names(inputs: Sequence[str], outputs: Sequence[str], template: Mapping[str, Parameter | str]) -> None:
    """Raises `ValueError` for names that C++, Metal or MLX has, that occur twice, and for integers beyond 32 bits.

    The message begins with the place, such as `inputs.int: `.
    """
    for mistake in _mistakes(inputs, outputs, template):
        raise ValueError(mistake)


def _mistakes(inputs: Sequence[str], outputs: Sequence[str], template: Mapping[str, Parameter | str]) -> Iterator[str]:
    owners: dict[str, str] = {}
    for kind, names in (("inputs", inputs), ("outputs", outputs), ("template", list(template))):
        for name in names:
            here = f"{kind}.{name}: "
            if whose := _owner(name):
                yield f"{here}{name!r} is {whose}; take another name"
            if name in owners:
                yield f"{here}{name!r} is a name in {owners[name]} too; give each its own"
            owners[name] = kind
    for name in inputs:
        for suffix in _SUFFIXES:
            if (other := name + suffix) in owners:
                yield f"{owners[other]}.{other}: MLX gives the input {name!r} a parameter {other!r}; take another name"
    for name, value in template.items():
        if isinstance(value, int) and not _LEAST <= value <= _MOST:
            yield f"template.{name}: {value} is beyond an int, {_LEAST} to {_MOST}; pass it as an input of one element"


def _owner(name: str) -> str | None:
    if _CPP.fullmatch(name):
        return "a word of C++"
    if name in METAL_ATTRIBUTES:
        return "what Metal tells a thread of itself"
    if _METAL.fullmatch(name):
        return "a word of Metal"
    return "a name kept for compilers and checkers" if _OURS.fullmatch(name) else None
