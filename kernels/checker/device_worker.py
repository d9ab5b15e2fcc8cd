"""Shares the cases that run on a device among processes, for most of the time goes into compiling.

`python -m tqcli.kernels.checker.device_worker BACKEND REPEATS NAME|- NUMBER ...` is one of them: it runs the cases of
these numbers and prints a line of JSON for each. One that crashes takes only its own cases with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import tqcli
from tqcli.kernels.checker.device import REPEATS, OnDevice, begin, on_device, shares
from tqcli.kernels.checker.operations import cases_of
from tqcli.kernels.runtime.case import Case

_JOBS_AT_MOST = 14
_ALL = "-"
_MODULE = "tqcli.kernels.checker.device_worker"


def jobs_for(backend: str) -> int:
    """Processes: one on a Mac, which compiles in no time, else most of the cores."""
    return 1 if backend == "metal" else min(_JOBS_AT_MOST, max(1, (os.cpu_count() or 1) - 2))


def in_processes(
    cases: Sequence[Case], name: str | None, backend: str, jobs: int, repeats: int = REPEATS
) -> Iterator[OnDevice]:
    """As `on_device`, of `cases_of(name)`, by so many processes, in the order in which they are done."""
    if jobs == 1:
        yield from on_device(enumerate(cases), backend, repeats)
        return
    queue: SimpleQueue[OnDevice | None] = SimpleQueue()
    left = {number: begin(number, case) for number, case in enumerate(cases)}
    dealt = [share for share in shares(cases, jobs) if share]
    ends: dict[int, int] = {}

    def follow(share: Sequence[int]) -> None:
        command = [sys.executable, "-m", _MODULE, backend, str(repeats), name or _ALL, *map(str, share)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_environment())
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                queue.put(OnDevice(**json.loads(line)))
        code = process.wait()
        ends.update(dict.fromkeys(share, code))
        queue.put(None)

    for share in dealt:
        Thread(target=follow, args=(share,), daemon=True).start()
    running = len(dealt)
    while running:
        result = queue.get()
        if result is None:
            running -= 1
        else:
            del left[result.case]
            yield result
    for number, begun in left.items():
        yield replace(begun, error=f"its process ended with exit code {ends[number]} before this case was done")


def _environment() -> dict[str, str]:
    """With this very package in front."""
    path = [str(Path(tqcli.__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def main() -> None:
    """See the module's description."""
    backend, repeats, name, *numbers = sys.argv[1:]
    cases = cases_of(None if name == _ALL else name)
    chosen = ((int(number), cases[int(number)]) for number in numbers)
    for result in on_device(chosen, backend, int(repeats)):
        print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main()
