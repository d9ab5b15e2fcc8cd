"""Programs that the checker starts end with what they were started for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from bodies import launch
from faults import GO, NUMBERS

from tqcli.kernels.checker import check, compiler, execute, mutate
from tqcli.kernels.checker.compiler import CompilerError, runner
from tqcli.kernels.checker.mutate import own_judge
from tqcli.kernels.checker.processes import call, workers

_ENDLESS = """
import sys
sys.path.insert(0, {tests!r})
from bodies import launch
from tqcli.kernels.checker import check_all
body = "uint n = 0;\\nfor (;;) y0[n = (n + 1) % 64] = 1.0f;"
check_all([launch(body), launch("//\\n" + body)], seconds=60)
"""


def until(happens: Callable[[], bool]) -> None:
    while not happens():
        time.sleep(0.02)


def _ignore(*_: object) -> None:
    pass


def children(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def is_running(process: int, name: str) -> bool:
    try:
        return name in Path(f"/proc/{process}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_interruption_kills_what_runs_and_drops_what_waits() -> None:
    started: list[Future[CompletedProcess[bytes]]] = []
    with pytest.raises(KeyboardInterrupt), workers(2) as pool:
        started += [pool.submit(call, ["sleep", "600"]) for _ in range(5)]
        until(lambda: len(children(os.getpid())) >= 2)
        raise KeyboardInterrupt
    assert all(future.done() for future in started)
    assert {future.result().returncode for future in started if not future.cancelled() and not future.exception()} <= {
        -signal.SIGKILL
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT], ids=lambda number: number.name)
def test_the_runner_ends_with_the_process_that_started_it(number: signal.Signals) -> None:
    name = str(runner())
    script = _ENDLESS.format(tests=str(Path(__file__).parent))
    parent = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    until(lambda: any(is_running(child, name) for child in children(parent.pid)))
    running = [child for child in children(parent.pid) if is_running(child, name)]
    parent.send_signal(number)
    assert parent.wait() != 0
    until(lambda: not any(is_running(child, name) for child in running))


def test_an_interrupted_compilation_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner()
    monkeypatch.setattr(compiler, "_folder", lambda: tmp_path)

    def interrupted(*_: object) -> None:
        (found,) = tmp_path.glob("tmp*/")
        (found / "ccother.s").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(compiler, "_call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compiler.build("int a;", {})
    assert list(tmp_path.iterdir()) == []


def test_mistakes_put_into_one_body_by_several_at_once_count_alike() -> None:
    body = launch(GO + "if (at < 64) y0[at] = x0[at];\nif (at < 3) y0[at] = x0[at];", [NUMBERS])
    judge = own_judge([body])
    with ThreadPoolExecutor(3) as pool:
        tallies = [pool.submit(mutate.mutate, [body], judge, _ignore, _ignore) for _ in range(3)]
        counts = {(t.total, t.noticed, sum(s.uncompilable for s in t.scores)) for t in (f.result() for f in tallies)}
    assert len(counts) == 1
    ((total, _, uncompilable),) = counts
    assert total > 5 and uncompilable == 0


def test_a_runner_that_fails_is_no_mistake_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    body = launch(GO + "y0[at] = x0[at];", [NUMBERS])
    judge = own_judge([body])
    monkeypatch.setattr(execute, "call", lambda *_: CompletedProcess([], 3, b"", b"no room"))
    with pytest.raises(CompilerError, match="the runner failed on body: no room"):
        mutate.mutate([body], judge, _ignore, _ignore)


@pytest.mark.parametrize("kept", [0, 100, 5000])
def test_a_library_that_was_cut_short_is_built_anew(kept: int) -> None:
    body = launch(GO + f"y0[at] = x0[at] + {kept}.0f;  // {time.time_ns()}", [NUMBERS])
    folder = runner().parent
    before = set(folder.glob("body-*"))
    assert check(body).findings == []
    for library in set(folder.glob("body-*")) - before:
        os.truncate(library, kept)
    assert check(body).findings == []
