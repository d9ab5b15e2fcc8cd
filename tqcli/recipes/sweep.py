"""What a plan is made from: the perplexity of a finished run, with its codecs by what they are and not by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tqcli.errors import InputError
from tqcli.models import LoadedModel
from tqcli.report.run import RunResult
from tqcli.report.schema import CodecResult, Result

_SHOWN = 12
"""Characters of a hash that are shown."""


@dataclass(frozen=True)
class Sweep:
    """What a plan needs to know of the run that it is made from."""

    result: Result
    """Of perplexity. Codecs are called as on the command line; those with other bits for some layers are left out."""
    model: str
    dtype: str
    """What the model ran in."""
    cache_dtype: str
    """What stays uncompressed is held in, and a codec's scales."""
    settings: Mapping[str, Any]
    """Of the recipe that the plan is confirmed with: dataset, calibration, seed, measures."""

    def check_model(self, loaded: LoadedModel) -> None:
        """Raises `InputError` unless it is the model that was swept."""
        for what in ("weights_sha256", "config_sha256"):
            swept, here = self.result.model.get(what), getattr(loaded, what)
            if swept is not None and swept != here:
                raise InputError(
                    f"{loaded.source.name} isn't the model that was swept: its {what} is {here[:_SHOWN]}, not "
                    f"{str(swept)[:_SHOWN]}; name {self.model} as it was with --model, or sweep this one"
                )


def sweep_of(found: RunResult | Result) -> Sweep:
    """Reads it off a run or a perplexity result.

    Raises `InputError` where perplexity was not measured, or layers were swept beside other uncompressed tokens.
    """
    result = found.measures.get("perplexity") if isinstance(found, RunResult) else found
    if result is None or result.kind != "perplexity":
        raise InputError(
            "the run has no perplexity, by which a plan is made; add `perplexity: {per_layer: true}` to it"
        )
    dataset, measured = result.dataset, result.settings
    perplexity = {key: measured[key] for key in ("chunk", "cache_dtype") if measured.get(key) is not None}
    calibration = found.recipe.get("calibration") if isinstance(found, RunResult) else None
    # Without the seed: other windows of it too, or it would learn from those that it is now measured on.
    learned = {} if calibration is None else {"calibration": {k: v for k, v in calibration.items() if k != "seed"}}
    return Sweep(
        result=result.model_copy(update={"codecs": _by_spec(found, result)}),
        model=str(result.model["name"]),
        dtype=str(result.model["compute_dtype"]),
        cache_dtype=str(measured.get("cache_dtype") or result.model["compute_dtype"]),
        settings={
            "dataset": {"spec": dataset["spec"], "windows": dataset["windows"], "tokens": dataset["tokens"]},
            **learned,
            # Other windows than those that the plan was made from.
            "seed": int(dataset["seed"]) + 1,
            "measures": {"perplexity": perplexity},
        },
    )


def _by_spec(found: RunResult | Result, result: Result) -> list[CodecResult]:
    if not isinstance(found, RunResult):
        if result.settings.get("layer_bits"):
            raise InputError("the sweep has other bits for some layers; measure it without --layer-bits")
        return result.codecs
    named = {codec.name: codec for codec in found.codecs}
    known = [(one, named[one.codec]) for one in result.codecs if one.codec in named]
    alike = [(one, codec) for one, codec in known if not codec.layer_bits]
    kept = {(codec.sinks, codec.recent) for one, codec in alike if one.layers}
    if len(kept) > 1:
        told = " and ".join(f"sinks: {sinks}, recent: {recent}" for sinks, recent in sorted(kept))
        raise InputError(f"layers were swept with {told}, so their divergences aren't of the same; sweep with one")
    return [
        one.model_copy(update={"codec": codec.codec}) for one, codec in alike if (codec.sinks, codec.recent) in kept
    ]
