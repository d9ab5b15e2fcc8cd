"""Prefill of SmolLM2 with the BLAS that tq loads, against OpenBLAS preloaded by hand; Linux CPU only.

Both run as processes that stay alive and take turns. The hand's library is Debian's `libopenblas0-pthread`, or the one
that the environment variable BENCH_BLAS names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.timing import Timing, once, show

TOKENS, CHUNK, ROUNDS = 512, 128, 9
PLACES = ("*/openblas-pthread/libopenblas.so.0", "libopenblasp.so.0", "libopenblas.so.0")


def main() -> None:
    """Prints both times and their ratio, which is to stay under 1.3."""
    library = _library()
    if library is None:
        print("skipped: no OpenBLAS to preload by hand; apt install libopenblas0-pthread, or set BENCH_BLAS")
        return
    by_hand = {"LD_PRELOAD": str(library), "TQ_BLAS": "reference"}
    workers = {"tq": _start({}), "by hand": _start(by_hand)}
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for turn in range(ROUNDS + 1):
        for name, worker in workers.items():
            print("go", file=worker.stdin, flush=True)
            elapsed = float(_line(worker))
            if turn:
                seconds[name].append(elapsed)
    for worker in workers.values():
        worker.communicate(timeout=60)
    print(f"prefill of {TOKENS} tokens in chunks of {CHUNK}, smollm2-135m, float32")
    show({name: Timing.of(values) for name, values in seconds.items()}, "by hand")


def _library() -> Path | None:
    if named := os.environ.get("BENCH_BLAS"):
        return Path(named)
    if sys.platform != "linux":
        return None
    folders = (Path("/usr/lib"), Path("/usr/lib64"))
    return next((path for place in PLACES for folder in folders for path in sorted(folder.glob(place))), None)


def _start(environment: dict[str, str]) -> subprocess.Popen[str]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "TQ_BLAS")}
    worker = subprocess.Popen(
        [sys.executable, "-m", "bench.bench_blas", "worker"],
        env=inherited | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    print(_line(worker), flush=True)
    return worker


def _line(worker: subprocess.Popen[str]) -> str:
    if worker.stdout is None or not (line := worker.stdout.readline()):
        raise RuntimeError("a worker ended early")
    return line.strip()


def _work() -> None:
    """Says which BLAS serves it, then times one prefill for every line on stdin."""
    from tqcli import blas

    prefill = _prefill()
    now = blas.status()
    print(f"{now.name}, {now.path}", flush=True)
    for _ in sys.stdin:
        print(once(prefill), flush=True)


def _prefill() -> Callable[[], object]:
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    from tqcli.models import load

    model = load("smollm2-135m").model
    tokens = mx.random.randint(0, 40_000, (1, TOKENS), key=mx.random.key(0))

    def prefill() -> mx.array:
        cache = make_prompt_cache(model)
        for start in range(0, TOKENS, CHUNK):
            logits: mx.array = model(tokens[:, start : start + CHUNK], cache=cache)
            mx.eval(logits)
        return logits

    return prefill


if __name__ == "__main__":
    _work() if sys.argv[1:] == ["worker"] else main()
