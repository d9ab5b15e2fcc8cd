"""`tq plan`: bits for each layer's keys and values, from a finished sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tqcli.cli.arguments import JsonOption, RecentOption, SinksOption, say
from tqcli.errors import InputError

if TYPE_CHECKING:
    from tqcli.recipes.plan import Planned

_LONGEST = 1 << 24
"""Tokens of a cache: bytes are counted over arrays of positions."""
_SHOWN = 40
"""Characters of a value that are shown."""


def plan(
    sweep: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A run, or JSON of tq eval perplexity, with single layers' divergence at several bits."
        ),
    ],
    bits: Annotated[
        float | None, typer.Option("--bits", help="Bits an element to keep to, every byte counted.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="Bytes of the whole cache, for example 200MB.")
    ] = None,
    kl: Annotated[
        float | None, typer.Option("--kl", help="Mean KL divergence to keep to, in nats, with the fewest bytes.")
    ] = None,
    context: Annotated[int, typer.Option("--context", help="Tokens that the cache holds.")] = 32768,
    model: Annotated[
        str | None, typer.Option("--model", help="The model, where it isn't where the sweep found it.")
    ] = None,
    sinks: SinksOption = 4,
    recent: RecentOption = 0,
    out: Annotated[Path | None, typer.Option("--out", help="File for the recipe. Default: stdout.")] = None,
    json: JsonOption = False,
) -> None:
    """Chooses bits for each layer by rate-distortion allocation, and prints a recipe that confirms the choice.

    Example: tq plan runs/sweep --bits 3.25 --out plan.yaml
    """
    import yaml

    from tqcli.models import load
    from tqcli.recipes.curves import read_curves
    from tqcli.recipes.plan import Budget, CacheBytes, plan_bits
    from tqcli.recipes.planned_recipe import check_recipe, recipe_of
    from tqcli.recipes.sweep import sweep_of
    from tqcli.report.load import read_result
    from tqcli.storage import check_file, write_file

    budget = _budget(bits, memory, kl)
    if not 1 <= context <= _LONGEST:
        raise InputError(f"--context must be 1 to {_LONGEST}, not {context}")
    if out is not None:
        check_file(out)
    found = sweep_of(read_result(sweep))
    curves = read_curves(found.result)
    loaded = load(model or found.model, found.dtype)
    found.check_model(loaded)
    most = curves.codec.with_bits(max(next(iter(curves.kl.values()))))
    sizes = CacheBytes.of_model(loaded.model, most, context, sinks, recent, found.cache_dtype)
    planned = plan_bits(curves, sizes, Budget(*budget), context, sinks, recent)
    document = recipe_of(planned, curves, found, model or found.model)
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=10_000)
    check_recipe(text)
    _say(planned)
    if json:
        from json import dumps

        print(dumps(document, indent=1))
    if out is not None:
        write_file(out, text.encode())
        say(f"confirm it with tq run {out}")
    elif not json:
        print(text, end="")


def _budget(
    bits: float | None, memory: str | None, kl: float | None
) -> tuple[float | None, float | None, float | None]:
    given = {"--bits": bits, "--memory": memory, "--kl": kl}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        what = f"{' and '.join(named)} are named" if named else "none is named"
        raise InputError(f"a plan keeps to one of --bits, --memory and --kl; {what}")
    size = None if memory is None else parse_size(memory)
    for name, value in (("--bits", bits), ("--memory", size), ("--kl", kl)):
        if value is not None and not 0 < value < float("inf"):
            shown = str(given[name])
            shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
            raise InputError(f"{name} must be more than 0, and a finite number, not {shown}")
    return bits, size, kl


def parse_size(text: str) -> float:
    """Bytes, of a number with kB, MB, GB, KiB, MiB, GiB or nothing behind it. Raises `InputError` for anything else."""
    import re

    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([kKmMgG])(i?)[bB]|[bB])?\s*", text)
    if not match:
        raise InputError(f"--memory {text!r} is not a size; write for example 200MB or 1.5GiB")
    number, unit, binary = match.groups()
    step = 1024 if binary else 1000
    return float(number) * (step ** ("kmg".index(unit.lower()) + 1) if unit else 1)


def _say(planned: Planned) -> None:
    of, beside = planned, [str(plan.codec) for plan in (planned.uniform, planned.above) if plan is not None]
    say(
        f"{of.bits_effective:.3f} bits an element at {of.tokens} tokens, {of.bytes / 1e6:.1f} MB; "
        f"mean KL foretold: {of.kl_predicted:.3g}; beside it {' and '.join(beside) or 'nothing'} for all layers"
    )
    if of.uniform is None or of.is_uniform:
        why = f"that is {of.plan.codec} for all layers" if of.is_uniform else "no codec for all layers takes as little"
        say(f"{why}, so the recipe has no gate against one; allow other bytes, or sweep more bits, for a choice")
