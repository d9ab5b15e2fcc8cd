"""Starts `tq` as a launcher does, in several local processes that reach each other over loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from running import Outcome

LAUNCHER = Path(sys.executable).with_name("mlx.launch")
_PATIENCE = 120
"""Seconds after which processes that hang are killed, and the test fails."""


def launched(processes: int, *arguments: object) -> Outcome:
    """`mlx.launch` of one command line; its own exit code is 0 whatever happens."""
    command = [LAUNCHER, "-n", processes, "--backend", "ring", "--starting-port", free_ports(processes), "--"]
    # An open stdin: the launcher reads one that has ended over and over.
    reading, writing = os.pipe()
    process = _start([*command, sys.executable, "-m", "tqcli", *arguments], reading)
    try:
        out, err = process.communicate(timeout=_PATIENCE)
    finally:
        os.close(reading)
        os.close(writing)
        _end([process])
    return Outcome(process.returncode, out, err)


def together(
    processes: int,
    arguments: Callable[[int], Sequence[object]],
    folder: Path,
    meanwhile: Callable[[list[subprocess.Popen[str]]], object] = lambda started: None,
) -> list[Outcome]:
    """What each process says of its own command line, with the environment that a launcher gives it.

    folder: for the list of hosts. meanwhile: is called with the processes once they are started.
    """
    port, hosts = free_ports(processes), folder / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port + rank}"] for rank in range(processes)]))
    started: list[subprocess.Popen[str]] = []
    try:
        for rank in range(processes):
            command = [sys.executable, "-m", "tqcli", *arguments(rank)]
            started.append(_start(command, MLX_HOSTFILE=str(hosts), MLX_RANK=str(rank)))
        meanwhile(started)
        said = [process.communicate(timeout=_PATIENCE) for process in started]
    finally:
        _end(started)
    return [Outcome(process.returncode, *texts) for process, texts in zip(started, said, strict=True)]


def free_ports(count: int) -> int:
    """The first of so many neighbouring ports that nobody listens on.

    Below those that the system hands out by itself, and apart for each test process, so that tests that run at the same
    time don't take each other's in the moment between.
    """
    first = 10_000 + os.getpid() * 37 % 20_000
    for start in range(first, first + 2_000, count):
        with ExitStack() as attempt, suppress(OSError):
            for port in range(start, start + count):
                attempt.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return start
    raise AssertionError("no port is free")


def _start(command: Sequence[object], stdin: int = subprocess.DEVNULL, **environment: str) -> subprocess.Popen[str]:
    """In a session of its own, one thread each: the machine's cores are shared."""
    return subprocess.Popen(
        list(map(str, command)),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment},
        start_new_session=True,
    )


def _end(started: Sequence[subprocess.Popen[str]]) -> None:
    """Kills what is left of them and of what they started."""
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
