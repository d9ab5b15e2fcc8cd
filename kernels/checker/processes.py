"""Programs that the checker starts, and ends when it is interrupted or fails itself."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from subprocess import PIPE, CompletedProcess, Popen


class _Group:
    """The programs of one pool's threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[Popen[bytes]] = set()
        self._is_stopped = False

    def start(self, command: Sequence[str], environment: Mapping[str, str] | None) -> Popen[bytes]:
        with self._lock:
            if self._is_stopped:
                raise InterruptedError(f"{command[0]} isn't started any more")
            # A session of its own, so that what a compiler starts ends with it.
            process = Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment, start_new_session=True)
            self._running.add(process)
            return process

    def ended(self, process: Popen[bytes]) -> None:
        with self._lock:
            self._running.discard(process)

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            for process in self._running:
                _kill(process)


_of_thread = threading.local()


def call(
    command: Sequence[str], data: bytes = b"", environment: Mapping[str, str] | None = None
) -> CompletedProcess[bytes]:
    """Runs a program to its end, `data` on its stdin. In a pool of `workers` that is stopped, it is killed."""
    group: _Group = getattr(_of_thread, "group", None) or _Group()
    with group.start(command, environment) as process:
        try:
            out, err = process.communicate(data)
        except BaseException:
            _kill(process)
            raise
        finally:
            group.ended(process)
    return CompletedProcess(command, process.returncode, out, err)


@contextmanager
def workers(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads whose programs are killed, and whose other work is dropped, where an exception leaves the block."""
    group = _Group()
    pool = ThreadPoolExecutor(count, initializer=lambda: setattr(_of_thread, "group", group))
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        group.stop()
        raise
    finally:
        pool.shutdown()


def _kill(process: Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
