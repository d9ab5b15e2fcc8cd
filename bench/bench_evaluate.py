"""`tq eval perplexity` through 4-bit caches against the uncompressed model, SmolLM2: time, and memory at its peak.

The windows are read by turns: each is read by the uncompressed model, then through each codec's caches.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.timing import Timing
from tqcli.capture.run import capture
from tqcli.capture.store import open_capture
from tqcli.codecs.spec import parse_codec
from tqcli.compression.plan import CompressionPlan
from tqcli.datasets import Document, Text, load_text
from tqcli.evaluation.perplexity import CHUNK, Case, PerplexityRun
from tqcli.evaluation.perplexity_calibration import plan_states
from tqcli.models import load

CODECS = ("turboquant-mse", "turboquant-rvq", "turboquant-prod", "qjl", "vecinfer", "affine")
BITS, SINKS, RECENT = 4, 4, 32
TOKENS, WINDOWS, SCORED = 1024, 5, 16
_CHARACTERS = 100_000


def main() -> None:
    """Prints seconds over those of the uncompressed model: at most 1.5 is asked for; and peaks, below that of fp16."""
    loaded, book = load("smollm2-135m"), load_text("sample").documents[0]
    measured, learned = (
        Text("sample", (Document(book.name, book.text[start : start + _CHARACTERS]),)) for start in (0, _CHARACTERS)
    )
    names = ["fp16", *(f"{name}@{BITS}" for name in CODECS)]
    plans = [CompressionPlan(parse_codec(name), sinks=SINKS, recent=RECENT) for name in names]
    with tempfile.TemporaryDirectory() as folder:
        capture(loaded, learned, Path(folder) / "capture", windows=1, tokens=TOKENS)
        states = plan_states(loaded, plans, open_capture(Path(folder) / "capture"))
    run = PerplexityRun(loaded, measured, plans, windows=WINDOWS, tokens=TOKENS, stride=SCORED, states=states)
    print(f"smollm2-135m, {loaded.compute_dtype}, {WINDOWS} windows of {TOKENS} tokens in steps of {CHUNK}")
    windows = list(run.walk())
    base = Timing.of([window.baseline.seconds for window in windows])
    peak = max(window.baseline.peak_bytes for window in windows)
    print(f"{'uncompressed':<18}  {base.median:6.2f} s  {'':31}peak {peak / 1e6:6.1f} MB")
    for index, plan in enumerate(plans):
        readings = [window.readings[Case(index)] for window in windows]
        seconds = Timing.of([reading.seconds for reading in readings])
        ratio = Timing.of([of.seconds / window.baseline.seconds for of, window in zip(readings, windows, strict=True)])
        spread = f"{ratio.median:.2f}x ({ratio.low:.2f} to {ratio.high:.2f}, n = {ratio.rounds})"
        peak = max(reading.peak_bytes for reading in readings)
        print(f"{plan.codec.keys!s:<18}  {seconds.median:6.2f} s  {spread:<31}peak {peak / 1e6:6.1f} MB")


if __name__ == "__main__":
    main()
