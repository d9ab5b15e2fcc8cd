"""What a recipe may hold. Its JSON Schema (`tq recipe schema`) lets editors complete and check it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Whole = Annotated[int, Field(ge=0, strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]
Number = Annotated[float, Field(strict=True)]
"""Strict, or `true` would count as 1."""
Scalar = bool | int | Number | str
Formats = Literal["html", "md", "csv", "parquet"]
MeasureName = Literal["distortion", "attention", "memory", "perplexity"]
Dtype = Literal["float32", "float16", "bfloat16"]


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        coerce_numbers_to_str=True,  # `layers: 7` is text
    )


class TextSettings(_Part):
    """Windows drawn from a text."""

    spec: str = "sample"
    """sample, a .txt, .jsonl or .parquet file, or a hub's name."""
    windows: Count = 4
    """How many windows."""
    tokens: Annotated[int, Field(ge=2, strict=True)] = 1024
    """Tokens of a window."""
    seed: Whole | None = None
    """Which windows are drawn; the recipe's seed if left out, and for calibration that plus one."""


class CaptureSettings(_Part):
    """What is captured of each window for the measures of distortion, attention and memory."""

    layers: str | None = None
    """Layers, as 0-3,7; all if left out."""
    queries: Count = 64
    """Query positions of a window."""
    chunk: Count = 256
    """Tokens a prefill step."""


class CodecEntry(_Part):
    """One codec, or several: every list in `bits` and `options` is an axis, and all combinations are measured."""

    codec: str
    """A codec as on the command line, name@bits,key=value, or its name alone, with `bits` and `options` beside it."""
    bits: Number | str | list[Number | str] | None = None
    """Bits an element, or keys/values as "4/2"; a list for several."""
    options: dict[str, Scalar | list[Scalar]] = {}
    """Options of the codec; a list of values for several."""
    sinks: Whole | None = None
    """Leading tokens that stay uncompressed; the recipe's if left out."""
    recent: Whole | None = None
    """Most recent tokens that stay uncompressed; the recipe's if left out."""
    layer_bits: str | None = None
    """Other bits for some layers, as 0:4,29:4/8 (keys/values); the recipe's if left out."""
    name: str | None = None
    """What reports call it; only where this is one codec."""
    per_layer: bool | None = None
    """Also compress one layer at a time for perplexity; as the measure says if left out."""
    predicted: dict[str, Number] = {}
    """Metrics that `tq plan` foretells, by name; reports put them beside what is measured."""


class Distortion(_Part):
    """Decoded keys and values against the originals, layer by layer."""


class Attention(_Part):
    """What attention makes of coded keys and values, layer by layer."""

    top_k: Count = 10
    """Keys of most weight that topk_overlap looks at."""


class Memory(_Part):
    """Bytes, measured and projected to longer contexts."""


class Perplexity(_Part):
    """What the model predicts with compressed caches."""

    windows: Count | None = None
    """How many windows; the data set's if left out."""
    tokens: Annotated[int, Field(ge=2, strict=True)] | None = None
    """Tokens of a window; the data set's if left out."""
    chunk: Count = 256
    """Tokens a prefill step."""
    stride: Count | None = None
    """Tokens scored at the end of each window; all but one if left out."""
    rechunk: Count | None = None
    """Also run in steps of so many tokens: the floor of float noise."""
    per_layer: bool = False
    """Also compress one layer at a time."""
    cache_dtype: Dtype | None = None
    """Of what stays uncompressed; what the model runs in if left out."""


class Measures(_Part):
    """What is measured; left out ones aren't. `{}` takes a measure's defaults."""

    distortion: Distortion | None = None
    attention: Attention | None = None
    memory: Memory | None = None
    perplexity: Perplexity | None = None


class Gate(_Part):
    """A bound that a metric must keep. It is judged on the interval's end: what straddles the bound is inconclusive."""

    metric: str
    """As reports name it, for example kl_mean or relative_mse."""
    codec: str = "*"
    """Which codecs, by their names in reports, with * and ?; all but the control if left out."""
    measure: MeasureName | None = None
    """Which measure's; needed where several give this metric."""
    tensor: Literal["keys", "values", "both"] | None = None
    """Keys or values alone; what comes of both if left out."""
    level: Literal["total", "worst_layer"] = "total"
    """The total, or the worst of all layers."""
    layer: Whole | None = None
    """One layer, in the place of `level`."""
    min: Number | None = None
    """The metric must be at least this."""
    max: Number | None = None
    """The metric must be at most this."""
    against: str | None = None
    """Another codec of this recipe, or `baseline` for the stored run: the bound is of the ratio to, or the difference
    from its metric."""
    compare: Literal["ratio", "difference"] = "ratio"
    """With `against`: what is bounded."""

    @model_validator(mode="after")
    def _one_bound(self) -> Gate:
        if (self.min is None) == (self.max is None):
            raise ValueError("a gate has either min or max")
        return self


class Recipe(_Part):
    """A study: model, text, codecs, measures, gates, and what is written."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)
    """Of the run's folder and the report."""
    description: str = ""
    """One or two sentences for the report."""
    model: str = "smollm2-135m"
    """A short name, a folder, a .gguf file or a hub id."""
    dtype: Dtype | None = None
    """What the model runs in; float32 on a CPU, else as stored, if left out."""
    dataset: TextSettings = TextSettings()
    """The text that is measured on."""
    calibration: TextSettings | None = None
    """Another text, or other windows, for codecs to learn from; each cache's own first 64 tokens if left out."""
    seed: Whole = 0
    """Of the windows that are drawn."""
    capture: CaptureSettings = CaptureSettings()
    codecs: Annotated[list[str | CodecEntry], Field(min_length=1)]
    """Codecs as on the command line, or entries that stand for several."""
    control: str | None = None
    """The codec, by its name in reports, that others are compared with."""
    sinks: Whole = 4
    """Leading tokens that stay uncompressed."""
    recent: Whole = 32
    """Most recent tokens that stay uncompressed."""
    layer_bits: str | None = None
    """Other bits for some layers, as 0:4,29:4/8 (keys/values)."""
    measures: Measures = Measures(attention=Attention(), memory=Memory())
    gates: list[Gate] = []
    baseline: str | None = None
    """The folder of a run that gates `against: baseline` compare with."""
    outputs: list[Formats] = ["html", "md", "csv", "parquet"]
    """What is written beside result.json and the recipe."""
