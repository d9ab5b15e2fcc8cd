"""Shares the windows of a perplexity run among processes; each gets the scores of all."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from tqcli.distributed import Group
from tqcli.evaluation.caches import CacheSize
from tqcli.evaluation.perplexity import Case, PerplexityRun, Reading, WindowScores, run_all
from tqcli.evaluation.perplexity_folder import PerplexityFolder
from tqcli.kernels.runtime import Use
from tqcli.manifests import settings
from tqcli.metrics.perplexity import TokenScores
from tqcli.storage import MANIFEST

_SCORES = [field.name for field in fields(TokenScores)]


def begin_together(folder: PerplexityFolder, group: Group, overwrite: bool, resume: bool) -> None:
    """Process 0 makes the folder; each takes from it the windows that are finished, if it sees the folder.

    Raises `InputError` as `PerplexityFolder.begin` does, and where a process would measure something else.
    """
    if group.size > 1:
        group.check_alike(settings(folder.manifest))
    if group.rank == 0:
        folder.begin(overwrite, resume)
    group.gather()
    folder.run.finished |= folder.finished()


def run_together(run: PerplexityRun, group: Group, folder: PerplexityFolder | None = None) -> PerplexityRun:
    """Finishes a run: process r of n walks windows r, r + n, ..., then each is given the scores of all.

    folder: keeps each window as soon as it is finished, where the process that runs it sees the folder; process 0
    writes the others at the end. Raises `InputError` as `Group.gather` does.
    """
    mine = range(group.rank, run.windows, group.size)
    sees = folder is not None and (folder.path / MANIFEST).is_file()
    run_all(run, folder.add if folder is not None and sees else lambda scores: None, mine)
    if group.size > 1:
        for rank, part in enumerate(group.gather(_pack([run.finished[window] for window in mine]))):
            if rank != group.rank:
                run.finished |= {scores.window: scores for scores in _unpack(part)}
        run.processes = group.size
        if folder is not None and group.rank == 0:
            folder.add_missing()
    return run


def _pack(windows: Sequence[WindowScores]) -> bytes:
    """The windows as an .npz file: a JSON document, and float64 [windows, cases, measures, tokens]."""
    scored = [[[getattr(of, name) for name in _SCORES] for of in scores.scores.values()] for scores in windows]
    document = [
        {
            "window": scores.window,
            "text_bytes": scores.text_bytes,
            "baseline": asdict(scores.baseline),
            "readings": [[asdict(case), asdict(reading)] for case, reading in scores.readings.items()],
            "scores": [asdict(case) for case in scores.scores],
            "backends": [asdict(use) for use in scores.backends],
        }
        for scores in windows
    ]
    file = io.BytesIO()
    header = np.frombuffer(json.dumps(document).encode(), np.uint8)
    np.savez(file, document=header, scored=np.array(scored, np.float64))
    return file.getvalue()


def _unpack(packed: bytes) -> list[WindowScores]:
    """What `_pack` was given, to the last bit."""
    with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
        document, scored = json.loads(arrays["document"].tobytes()), arrays["scored"]
    return [
        WindowScores(
            window["window"],
            window["text_bytes"],
            _reading(window["baseline"]),
            {Case(**case): _reading(reading) for case, reading in window["readings"]},
            {Case(**case): TokenScores(*measures) for case, measures in zip(window["scores"], of_window, strict=True)},
            [Use(**use) for use in window["backends"]],
        )
        for window, of_window in zip(document, scored, strict=True)
    ]


def _reading(document: dict[str, Any]) -> Reading:
    return Reading(**document | {"cache": CacheSize(**document["cache"])})
