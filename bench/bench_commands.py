"""Whole commands: `tq --help`, and `tq eval distortion` with five codecs on 4 x 1,024 tokens of SmolLM2."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.timing import Timing

CODECS = ("turboquant-mse@4", "turboquant-mse@3", "turboquant-mse@2", "affine@4", "fp16")


def main() -> None:
    """Prints seconds of each: under 0.3 and under 30 on two cores are asked for."""
    _report("tq --help", ["--help"], rounds=15)
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "capture"
        tq("capture", "smollm2-135m", "--windows", "4", "--tokens", "1024", "--out", str(capture))
        codecs = [argument for codec in CODECS for argument in ("--codec", codec)]
        _report(f"tq eval distortion, {len(CODECS)} codecs", ["eval", "distortion", str(capture), *codecs], rounds=3)


def tq(*arguments: str) -> float:
    """Seconds of one `tq` command as a process of its own."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "tqcli", *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def _report(what: str, arguments: list[str], rounds: int) -> None:
    t = Timing.of([tq(*arguments) for _ in range(rounds + 1)][1:])
    print(f"{what}: {t.median:.2f} s ({t.low:.2f} to {t.high:.2f}, n = {t.rounds})", flush=True)


if __name__ == "__main__":
    main()
