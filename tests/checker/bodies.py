"""Launches of small bodies that tests write down themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from textwrap import dedent

import mlx.core as mx

from tqcli.kernels.runtime.kernel import Kernel, Launch, Parameter, Size

MARK = "// here"


def launch(
    body: str,
    inputs: Sequence[mx.array] = (),
    outputs: Sequence[tuple[int, ...]] = ((64,),),
    grid: int | Size = 64,
    threadgroup: int | Size = 64,
    template: Mapping[str, Parameter] | None = None,
    dtypes: Sequence[mx.Dtype] | None = None,
    header: str = "",
    init_value: float | None = None,
) -> Launch:
    """Inputs are called x0, x1, ..., outputs y0, y1, ... (float32 unless `dtypes` says otherwise)."""
    folder = Path(mkdtemp(prefix="tq-body-"))
    (folder / "body.metal").write_text(dedent(body).lstrip("\n"))
    (folder / "helpers.h").write_text(dedent(header).lstrip("\n"))
    kernel = Kernel(
        "body",
        folder / "body.metal",
        tuple(f"x{i}" for i in range(len(inputs))),
        tuple(f"y{i}" for i in range(len(outputs))),
        tuple(template or {}),
        (str(folder / "helpers.h"),) if header else (),
    )
    return Launch(
        kernel,
        list(inputs),
        dict(template or {}),
        _size(grid),
        _size(threadgroup),
        list(outputs),
        list(dtypes or [mx.float32] * len(outputs)),
        init_value,
    )


def marked_lines(launch: Launch) -> list[str]:
    """`file:line` of each line that ends in the mark."""
    files = [launch.kernel.body, *map(Path, launch.kernel.headers)]
    return [
        f"{file.name}:{number}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if re.search(rf"{MARK}$", line)
    ]


def _size(side: int | Size) -> Size:
    return (side, 1, 1) if isinstance(side, int) else side
