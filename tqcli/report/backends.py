"""Which back-end each operation took, as lines for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tqcli.kernels.runtime import Use

_NAMES = {"mlx": "plain MLX", "cuda": "CUDA kernels", "metal": "Metal kernels"}


def backend_lines(uses: Sequence[Use]) -> list[str]:
    """What most calls took and why, a GPU's kernels before plain operations; then a line for each operation apart.

    No line where no operation was called.
    """
    if not uses:
        return []
    calls: Counter[tuple[str, str]] = Counter()
    of_operation: Counter[str] = Counter()
    for use in uses:
        calls[use.backend, use.reason] += use.calls
        of_operation[use.operation] += use.calls
    usual = max(calls, key=lambda how: (how[0] != "mlx", calls[how]))
    lines = [f"Operations: {_NAMES[usual[0]]} ({usual[1]})" + (", but for" if len(calls) > 1 else "")]
    for use in uses:
        if (use.backend, use.reason) != usual:
            count = f"{use.calls} of {of_operation[use.operation]} calls"
            lines.append(f"  {use.operation}: {_NAMES[use.backend]}, {count}: {use.reason}")
    return lines
