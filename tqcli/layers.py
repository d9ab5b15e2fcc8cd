"""Layers as users write them."""

from __future__ import annotations

from tqcli.errors import InputError


def parse_layers(text: str) -> tuple[int, ...]:
    """Reads layers as `0-3,7`: sorted, each once. Raises `InputError` naming what is wrong."""
    layers: set[int] = set()
    for part in (p.strip() for p in text.split(",")):
        first, dash, last = part.partition("-")
        numbers = [first, last] if dash else [first]
        # A model has hundreds of layers at most; more digits are a slip, and a range of them would fill the memory.
        readable = all(n.isascii() and n.isdigit() and len(n) <= 4 for n in numbers)
        if not readable or int(numbers[-1]) < int(first):
            raise InputError(f"{part!r} in --layers {text!r} is not a layer or a range; write for example 0-3,7")
        layers |= set(range(int(first), int(last or first) + 1))
    return tuple(sorted(layers))
