"""What the codecs of a perplexity run learn from a calibration capture of the same model."""

from __future__ import annotations

from collections.abc import Sequence

from tqcli.capture.store import Capture
from tqcli.compression.calibration import States, learn
from tqcli.compression.plan import CompressionPlan
from tqcli.errors import InputError
from tqcli.models import LoadedModel


def plan_states(
    loaded: LoadedModel, plans: Sequence[CompressionPlan], calibration: Capture | None
) -> list[States | None] | None:
    """The states of each plan, None without a calibration capture.

    Raises `InputError` for a capture of another model, or a decoded one.
    """
    if calibration is None:
        return None
    manifest = calibration.manifest
    where = f"the calibration capture {calibration.folder}"
    if (manifest.model.weights_sha256, manifest.model.config_sha256) != (loaded.weights_sha256, loaded.config_sha256):
        raise InputError(
            f"{where} is of {manifest.model.name}, not of the {loaded.source.name} that is measured; capture that one"
        )
    if manifest.decoded_from:
        raise InputError(
            f"{where} was decoded from {manifest.decoded_from}; calibrate with a capture of the model itself"
        )
    return [learn(plan, calibration, calibration) for plan in plans]
