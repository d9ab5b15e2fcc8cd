"""Rate-distortion allocation: which bits each tensor gets, for the least divergence at a number of bytes.

Divergences of single tensors are taken to add up. Then a Lagrangian decides (Shoham and Gersho 1988): every tensor sits
where one more byte saves as much divergence as it does anywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

Key = TypeVar("Key")


@dataclass(frozen=True)
class Choice:
    """What one tensor may be given."""

    bits: float
    bytes: float
    kl: float
    """Mean KL divergence with this tensor alone compressed, in nats."""


def allocate(
    curves: Mapping[Key, Sequence[Choice]], byte_budget: float | None = None, kl_budget: float | None = None
) -> dict[Key, Choice]:
    """A choice for each tensor: least divergence within `byte_budget`, or fewest bytes within `kl_budget`.

    Only choices on the lower convex hull of a tensor's curve are taken, one more of which fits until none does.
    Raises `ValueError` unless exactly one budget is given, and where even the smallest or best choices exceed it.
    """
    if (byte_budget is None) == (kl_budget is None):
        raise ValueError("an allocation keeps either a number of bytes or a divergence")
    hulls = {key: hull(choices) for key, choices in curves.items()}
    taken = dict.fromkeys(hulls, 0)
    spent, lost = sum(h[0].bytes for h in hulls.values()), sum(h[0].kl for h in hulls.values())
    if byte_budget is not None and spent > byte_budget:
        raise ValueError(f"the fewest bits take {spent:.0f} bytes, more than {byte_budget:.0f}")
    if kl_budget is not None and (least := sum(h[-1].kl for h in hulls.values())) > kl_budget:
        raise ValueError(f"the most bits leave a divergence of {least:.3g}, more than {kl_budget:.3g}")
    # On a hull each step saves less a byte than the one before, so that the best steps of all come in a valid order.
    steps = sorted(
        ((_slope(a, b), n, key) for key, h in hulls.items() for n, (a, b) in enumerate(pairwise(h))),
        key=lambda step: (-step[0], step[1]),
    )
    for _, n, key in steps:
        if kl_budget is not None and lost <= kl_budget:
            break
        before, after = hulls[key][n], hulls[key][n + 1]
        if taken[key] != n or (byte_budget is not None and spent + after.bytes - before.bytes > byte_budget):
            continue
        taken[key] = n + 1
        spent += after.bytes - before.bytes
        lost += after.kl - before.kl
    return {key: hulls[key][n] for key, n in taken.items()}


def hull(choices: Sequence[Choice]) -> list[Choice]:
    """Those on the lower convex hull of divergence over bytes, by bytes; each has less divergence than the one before.

    Raises `ValueError` if there is none.
    """
    if not choices:
        raise ValueError("a tensor without a choice")
    points: list[Choice] = []
    for choice in sorted(choices, key=lambda c: (c.bytes, c.kl)):
        if points and (choice.bytes == points[-1].bytes or choice.kl >= points[-1].kl):
            continue
        while len(points) > 1 and _slope(points[-2], points[-1]) <= _slope(points[-1], choice):
            points.pop()
        points.append(choice)
    return points


def _slope(a: Choice, b: Choice) -> float:
    """Divergence that a byte saves."""
    return (a.kl - b.kl) / (b.bytes - a.bytes)
