"""Distortion of several codecs on one capture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mlx.core as mx

from tqcli.capture.store import Capture
from tqcli.compression.plan import CompressionPlan
from tqcli.environment import device_name, versions
from tqcli.evaluation.coder import TENSORS, Coder
from tqcli.evaluation.tally import DistortionTally
from tqcli.kernels.runtime import Use, used
from tqcli.progress import progress
from tqcli.report.schema import Environment, Result, SkippedTensor

CALIBRATION_UNUSED = "--calibration was not used: none of these codecs learns anything beforehand"


def evaluate_distortion(
    capture: Capture, plans: Sequence[CompressionPlan], calibration: Capture | None = None
) -> Result:
    """Encodes and decodes every tensor of the capture with every plan; nothing is written.

    Raises `InputError` for a damaged capture, a calibration capture that doesn't fit, or a plan that compressed
    nothing.
    """
    check_plans(plans)
    before = used()
    tallies = [DistortionTally(Coder(capture, plan, calibration)) for plan in plans]
    steps = len(capture.manifest.shards) * len(capture.layers)
    with progress(steps, "distortion", "layer") as bar:
        for window in capture.windows():
            for layer in capture.layers:
                for tensor in TENSORS:
                    x = window.tensor(layer, tensor)
                    mx.eval(x)
                    for tally in tallies:
                        tally.add(layer, tensor, x, window)
                bar.update()
    for tally in tallies:
        tally.coder.check_something_compressed()
    coders = [tally.coder for tally in tallies]
    results = [tally.result() for tally in tallies]
    return capture_result("distortion", capture, coders, results, calibration, used(before))


def check_plans(plans: Sequence[CompressionPlan]) -> None:
    """Raises `ValueError` for plans that can't be compared: none, or with other sinks or recent tokens."""
    if len({(plan.sinks, plan.recent) for plan in plans}) != 1:
        raise ValueError("plans that are compared keep the same sinks and recent tokens; and there must be one")


def capture_result(
    kind: str,
    capture: Capture,
    coders: Sequence[Coder],
    codecs: Sequence[object],
    calibration: Capture | None,
    backends: Sequence[Use],
    settings: Mapping[str, object] | None = None,
) -> Result:
    """A result with what identifies the captures and the machine."""
    manifest, plan = capture.manifest, coders[0].plan
    learned = any(coder.learned for coder in coders)
    return Result.model_validate(
        {
            "kind": kind,
            "environment": Environment(**versions(), device=device_name()),
            "capture": str(capture.folder),
            "model": manifest.model.model_dump(),
            "dataset": manifest.dataset.model_dump(),
            "settings": {
                "sinks": plan.sinks,
                "recent": plan.recent,
                "decoded_from": manifest.decoded_from,
                "calibration": _calibration(calibration) if calibration is not None and learned else None,
                **(settings or {}),
            },
            "backends": backends,
            "codecs": list(codecs),
            "notes": [CALIBRATION_UNUSED] if calibration is not None and not learned else [],
            "skipped_layers": [SkippedTensor(layer=s.layer, tensor=None, reason=s.reason) for s in manifest.skipped],
        }
    )


def _calibration(capture: Capture) -> dict[str, object]:
    dataset = capture.manifest.dataset
    return {"capture": str(capture.folder), "dataset": dataset.model_dump()}
