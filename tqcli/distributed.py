"""Processes that share one command's work, as `mlx.launch` starts them: all contact with `mx.distributed`.

Every exchange tells of each process whether it has failed, so that an error of one ends all. Exchanges are made in the
same order everywhere, the last one by `settle` when a command ends. Where no launcher is at work nothing here loads MLX
or opens a socket.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tqcli.errors import InputError, TqError


class PeersFailed(TqError):
    """Processes of the run failed, this one perhaps among them; every process gets the same message and exit code."""

    def __init__(self, failed: Mapping[int, tuple[int, str]]) -> None:
        said: dict[str, int] = {}
        for rank, (_, message) in sorted(failed.items()):
            said.setdefault(message, rank)
        super().__init__("; ".join(f"process {rank}: {message}" if rank else message for message, rank in said.items()))
        self.exit_code = max(code for code, _ in failed.values())


class PeerLost(TqError):
    """Another process went away without a word, so the run can't be finished."""


class Group:
    """The processes that share a command's work; one alone unless a group of `mx.distributed` is given."""

    def __init__(self, group: Any = None, on_gpu: bool = False) -> None:
        self.rank: int = 0 if group is None else group.rank()
        self.size: int = 1 if group is None else group.size()
        self.over: TqError | None = None
        """The failure that ended the run: there are no exchanges after it."""
        self._group, self._on_gpu = group, on_gpu

    def gather(self, payload: bytes = b"") -> list[bytes]:
        """What each process gave, by rank, in every process; waits for all.

        Raises `PeersFailed` where one has failed instead of coming here, `PeerLost` where one has died.
        """
        return [payload] if self.size == 1 else self._round(0, payload)

    def share(self, payload: bytes) -> bytes:
        """What process 0 gave; errors as in `gather`."""
        return self.gather(payload if self.rank == 0 else b"")[0]

    def check_alike(self, facts: Mapping[str, Any]) -> None:
        """Raises `InputError`, in every process, for the first of these JSON values that isn't the same in all."""
        told = [json.loads(part) for part in self.gather(json.dumps(facts).encode())]
        for rank, other in enumerate(told):
            for name, value in told[0].items():
                if other.get(name) != value:
                    raise InputError(
                        f"process {rank} has another {name} ({other.get(name)}; process 0: {value}); start all with "
                        "the same model, text, options and versions, on machines of one kind"
                    )

    def settle(self, code: int, message: str | None, show: Callable[[str], None]) -> int:
        """Ends the run with this process's exit code: waits for the others, and shows in process 0 what any has to say.

        Returns the exit code; that of the failed ones where this process has done its part.
        """
        if self.over is None:
            try:
                self._round(code, (message or "").encode())
                return code
            except TqError:
                pass  # kept in `over`
        if isinstance(self.over, PeersFailed) and self.rank == 0 and str(self.over):
            show(str(self.over))
        elif isinstance(self.over, PeerLost):
            show(f"process {self.rank}: {message if code and message else self.over}")
        # A launcher ends the others as soon as one has left with an error: not before it is shown.
        if isinstance(self.over, PeersFailed):
            with suppress(TqError):
                self._all(b"\0")
        return code or (self.over.exit_code if self.over else 0)

    def _round(self, code: int, payload: bytes) -> list[bytes]:
        """One exchange. code: not 0 where this process has failed; the payload is its message then."""
        heads = self._all(code.to_bytes(4, "little") + len(payload).to_bytes(8, "little"))
        codes = [int.from_bytes(head[:4], "little") for head in heads]
        sizes = [int.from_bytes(head[4:], "little") for head in heads]
        # Padded to the longest: collectives take one shape everywhere.
        longest = max(sizes)
        padded = self._all(payload.ljust(longest, b"\0")) if longest else [b""] * self.size
        payloads = [part[:size] for part, size in zip(padded, sizes, strict=True)]
        if any(codes):
            failed = {rank: (code, payloads[rank].decode()) for rank, code in enumerate(codes) if code}
            self.over = PeersFailed(failed)
            raise self.over
        return payloads

    def _all(self, block: bytes) -> list[bytes]:
        """`mx.distributed.all_gather` of blocks of one length."""
        import mlx.core as mx
        import numpy as np

        stream = mx.gpu if self._on_gpu else mx.cpu
        try:
            with _interruptible():
                mine = mx.array(np.frombuffer(block, np.uint8))
                joined = mx.distributed.all_gather(mine, group=self._group, stream=stream)
                mx.eval(joined)
        except RuntimeError as e:
            self.over = PeerLost(f"another process of the run has died ({e}); see what it said, and start the run anew")
            raise self.over from e
        everything = np.array(joined).tobytes()
        return [everything[start : start + len(block)] for start in range(0, len(everything), len(block))]


ALONE = Group()
_joined: Group | None = None
_failed_to_join = False


def joined() -> Group:
    """The processes that the launcher started, waiting until all are there; `ALONE` without a launcher.

    Raises `InputError` where they can't be reached.
    """
    global _joined, _failed_to_join
    backend = _backend()
    if backend is None:
        return ALONE
    if _joined is None:
        import mlx.core as mx

        try:
            with _interruptible():
                group = mx.distributed.init(strict=True, backend=backend)
        except (RuntimeError, ValueError) as e:
            _failed_to_join = True
            raise InputError(
                f"can't join the other processes over {backend}: {' '.join(str(e).split())}; choose other ports with "
                "mlx.launch --starting-port, or another --backend"
            ) from e
        _joined = Group(group, on_gpu=backend == "nccl")
    return _joined


def is_first() -> bool:
    """Whether this process speaks for the run: process 0, or the only one. Asks the launcher's environment alone."""
    return _backend() is None or _environment_rank() == 0


def settle(code: int, message: str | None, show: Callable[[str], None]) -> int:
    """Ends a command, in every process: shows its message once and returns its exit code; see `Group.settle`.

    Without a launcher, and for a command that was interrupted, nothing is waited for.
    """
    if _backend() is None or code == 130 or _failed_to_join:
        if message and (is_first() or _failed_to_join):
            show(message)
        return code
    try:
        group = joined()
    except InputError as e:
        show(message or str(e))
        return code or e.exit_code
    return group.settle(code, message, show)


def _environment_rank() -> int:
    return _number("MLX_RANK") or _number("OMPI_COMM_WORLD_RANK")


def _number(name: str) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else 0


def _backend() -> str | None:
    """The back-end by what the launcher set; None for one process: the variables are set for a single one too."""
    if _number("OMPI_COMM_WORLD_SIZE") > 1:
        return "mpi"
    if not os.environ.get("MLX_RANK"):
        return None
    if _number("MLX_WORLD_SIZE") > 1:
        return "nccl"
    for name, backend in (("MLX_HOSTFILE", "ring"), ("MLX_IBV_DEVICES", "jaccl")):
        if os.environ.get(name) and _entries(Path(os.environ[name])) != 1:
            return backend
    return None


def _entries(hosts: Path) -> int:
    """How many processes a launcher's JSON list names: 1 for an empty file, 0 for what MLX shall complain of."""
    try:
        text = hosts.read_text().strip()
        document = json.loads(text) if text else [""]
    except (OSError, ValueError):
        return 0
    return len(document) if isinstance(document, Sequence) else 0


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends the process at once while it waits in MLX, which would keep Python from hearing of it."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
