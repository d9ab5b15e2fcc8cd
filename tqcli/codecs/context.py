"""What a codec is told about the tensor that it codes: which layer, its shape, scale, window and rotary embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

Tensor = Literal["keys", "values"]


@dataclass(frozen=True)
class RotaryParameters:
    """The rotary position embedding of one layer, as the layer applies it (RoFormer, arXiv 2104.09864, section 3.2).

    Pair `i` of a key at position `t` is turned by the angle `t * frequencies[i]`. Only the first `dims` channels are
    rotated; the rest pass unchanged. Context-extension schemes (llama 3, YaRN) are already in the frequencies.
    """

    frequencies: tuple[float, ...]
    """Radians per position, one for each rotated pair of channels."""
    interleaved: bool
    """True: pair i is channels (2i, 2i + 1), mlx's `traditional`. False: channels (i, i + dims / 2)."""

    @property
    def dims(self) -> int:
        """How many leading channels of a head are rotated."""
        return 2 * len(self.frequencies)


@dataclass(frozen=True)
class LayerContext:
    """One layer's keys or values, seen by a codec. `positions` are those of the tokens in hand, in cache order."""

    layer: int
    tensor: Tensor
    head_dim: int
    n_q_heads: int
    n_kv_heads: int
    scale: float
    """What the logits q . k are multiplied by."""
    window: int | None = None
    """Length in tokens of the layer's sliding window, None where it attends to everything."""
    cache_dtype: str = "float16"
    """What the model's own cache would hold; tokens that stay uncompressed are kept in it."""
    capture_dtype: str = "float32"
    """What the tensor in hand was captured in."""
    sinks: int = 0
    """How many leading tokens are kept uncompressed, outside the codec."""
    rotary: RotaryParameters | None = None
    """None where the layer has no rotary embedding or it isn't known."""
    positions: NDArray[np.int64] | None = None
    """[tokens] absolute positions; None stands for 0, 1, 2, ..."""

    @property
    def arithmetic(self) -> mx.Dtype:
        """What codecs compute in: float32, or float64 where the model's own cache is of that (on a CPU)."""
        return mx.float64 if self.cache_dtype == "float64" else mx.float32

    @property
    def gqa_ratio(self) -> int:
        """Query heads that share one KV head."""
        return self.n_q_heads // self.n_kv_heads
