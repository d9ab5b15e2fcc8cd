"""Which metrics each measure gives, and where: what a gate can ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tqcli.recipes.schema import MeasureName

Where = Literal["keys", "values", "both"]


@dataclass(frozen=True)
class Given:
    """Where a metric can be found."""

    tensors: tuple[Where, ...] = ("keys", "values", "both")
    layers: bool = True
    """For each layer too, besides the total."""
    needs: str | None = None
    """The setting of the measure without which there is none."""
    layers_need: str | None = None
    """The setting without which there is none for each layer."""


_OF_BOTH: tuple[Where, ...] = ("both",)
_EACH = Given()
_TOTAL = Given(_OF_BOTH, layers=False)
_SIZES = dict.fromkeys(
    ("bits_nominal", "bits_effective", "bytes_resident", "bytes_nominal", "bytes_fp16", "ratio"), _EACH
)
_ATTENTION = ("attention_kl", "attention_error", "logit_correlation", "topk_overlap")
_PREDICTIONS = (
    *("ppl", "ppl_base", "ppl_delta_percent", "bits_per_byte"),
    *("kl_mean", "kl_p99_9", "kl_p99", "kl_p95", "kl_p90", "kl_p50", "kl_p10"),
    *("rms_delta_p", "same_top1"),
)
_FLOORS = ("kl_mean", "kl_p99_9", "same_top1", "ppl_delta_percent")
_PROJECTED = ("8192", "32768", "131072")

METRICS: dict[MeasureName, dict[str, Given]] = {
    "distortion": {
        **dict.fromkeys(("relative_mse", "relative_mse_theory", "cosine", "snr_db", "worst_vector"), _EACH),
        **dict.fromkeys(("ip_bias", "ip_slope", "ip_variance_d", "ip_variance_d_theory"), Given(("keys",))),
        **_SIZES,
    },
    "attention": {
        **dict.fromkeys(_ATTENTION, Given(_OF_BOTH)),
        **{f"{name}_{of}": _TOTAL for name in _ATTENTION for of in ("median", "worst")},
        **_SIZES,
    },
    "memory": {
        **_SIZES,
        "peak_bytes": _TOTAL,
        **{f"{name}_{tokens}": _TOTAL for name in ("bytes_nominal", "bytes_fp16") for tokens in _PROJECTED},
    },
    "perplexity": {
        **dict.fromkeys(_PREDICTIONS, Given(_OF_BOTH, layers_need="per_layer")),
        **{f"{name}_rechunked": Given(_OF_BOTH, layers=False, needs="rechunk") for name in _FLOORS},
        **dict.fromkeys(
            ("tokens_per_second", "peak_bytes", "bytes_resident", "bytes_fp16", "bits_effective", "ratio"), _TOTAL
        ),
    },
}
"""By measure and name; docs/evaluate.md says what they are."""
