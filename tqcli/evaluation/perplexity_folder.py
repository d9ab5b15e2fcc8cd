"""The folder that a perplexity run keeps its finished windows in, so that it can be gone on with.

A window has a safetensors file, and beside it a JSON with that file's size and sha256, which is written last: there is
no index that has to be rewritten, so several processes can write different windows into one folder.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Literal, Self, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from tqcli.capture.manifest import CaptureManifest, DatasetRecord, ModelRecord
from tqcli.capture.run import dataset_record, model_record
from tqcli.capture.store import Capture
from tqcli.distributed import is_first
from tqcli.environment import device_name
from tqcli.errors import InputError
from tqcli.evaluation.perplexity import Case, PerplexityRun, Reading, WindowScores
from tqcli.kernels.runtime import Use, preferred
from tqcli.manifests import Dtype, FileEntry, Strict, first_difference, read_manifest
from tqcli.metrics.perplexity import TokenScores
from tqcli.report.schema import Result
from tqcli.resumable import FolderKind, window_file
from tqcli.storage import (
    MANIFEST,
    FileRecord,
    make_folder,
    plain_path,
    read_json,
    read_shard,
    sha256_bytes,
    write_json,
    write_shard,
)
from tqcli.version import __version__

RESULT = "result.json"
_FORMAT = "tq-perplexity"
_SCORES = [field.name for field in fields(TokenScores)]
WINDOW_DONE = re.compile(r"window-\d{5,}\.json")


class PerplexityManifest(Strict):
    """`manifest.json` of a perplexity run: all that its figures depend on, but for times."""

    format: Literal["tq-perplexity"] = "tq-perplexity"
    version: Literal[2] = 2
    tq_version: str
    mlx_version: str
    mlx_lm_version: str
    backend: str
    """Device and BLAS that the model ran on."""
    kernel_backend: str
    """What operations take that have a kernel: metal, cuda, or mlx for plain operations."""
    model: ModelRecord
    dataset: DatasetRecord
    codecs: list[str]
    layer_bits: list[dict[int, tuple[float, float | None]]]
    """Of each codec: other bits of some layers, keys' and values'."""
    sinks: int
    recent: int
    calibration: DatasetRecord | None
    """What the calibration capture, if there was one, was taken on."""
    calibration_sha256: str | None
    """Of the sha256 of its shards, one after the other."""
    chunk: int
    rechunk: int | None
    stride: int
    """Tokens that are scored at the end of each window."""
    per_layer: bool | list[int]
    cache_dtype: Dtype

    @property
    def settings_sha256(self) -> str:
        """Of what a window's figures depend on: not on how many others there are, nor on what files are called."""
        names = {"model": {"name", "kind"}, "dataset": {"spec", "windows", "tokens_sha256"}, "calibration": {"spec"}}
        return sha256_bytes(json.dumps(self.model_dump(mode="json", exclude=names), sort_keys=True).encode())


class WindowRecord(Strict):
    """What the metadata of a window's file hold; the scores follow in the order of `readings`."""

    window: int
    settings_sha256: str
    tokens_sha256: str
    """Of the window's own token ids as little-endian int32."""
    text_bytes: int
    baseline: Reading
    readings: list[tuple[Case, Reading]]
    backends: list[Use]


def _progress(folder: Path) -> tuple[int, int]:
    manifest = read_manifest(folder, PerplexityManifest, "a perplexity run", "tq eval perplexity")
    return sum(WINDOW_DONE.fullmatch(path.name) is not None for path in folder.iterdir()), manifest.dataset.windows


_FOLDER = FolderKind(
    "perplexity run",
    _FORMAT,
    r"result\.json|window-\d{5,}\.(safetensors|json)",
    _progress,
    manifest_first=True,
    if_finished="tell its figures again with --resume, ",
)
check_out = _FOLDER.check_out


class PerplexityFolder:
    """The windows of one run on disk.

    One process calls `begin`, and then each of them `add`, for windows of its own; `finished` reads those of all.
    """

    def __init__(self, path: Path, run: PerplexityRun, calibration: Capture | None = None) -> None:
        self.path, self.run = plain_path(path), run
        self.manifest = _manifest(run, calibration)
        self._kept: set[int] = set()

    @classmethod
    def of_settings(cls, stem: str, run: PerplexityRun, calibration: Capture | None = None) -> Self:
        """`runs/STEM-HASH`, the hash being that of all settings: a run of others has another folder."""
        settings = json.dumps(_manifest(run, calibration).model_dump(mode="json"), sort_keys=True)
        return cls(Path("runs") / f"{stem}-{sha256_bytes(settings.encode())[:8]}", run, calibration)

    def begin(self, overwrite: bool = False, resume: bool = False) -> None:
        """Makes the folder and writes its manifest; with `resume`, keeps the windows of an earlier run.

        It may have had fewer windows. Raises `InputError` where `check_out` does, if the folder can't be written, and
        if the earlier run had other settings, naming the first.
        """
        out, fresh = self.path, self.manifest
        going_on = _FOLDER.prepare(out, overwrite, resume)
        if going_on:
            found = read_manifest(out, PerplexityManifest, "a perplexity run", "tq eval perplexity")
            # As if no more windows were asked for: they are drawn one after the other, so more don't change the first.
            same = self._with_windows(min(found.dataset.windows, fresh.dataset.windows))
            if difference := first_difference(found, same):
                raise InputError(
                    f"{out} was measured with another {difference}; repeat the first run's options, use --overwrite, "
                    "or choose another folder with --out"
                )
            if found == fresh:
                return  # also where the folder can't be written to: its figures can be told
        make_folder(out)
        (out / RESULT).unlink(missing_ok=True)  # of fewer windows
        write_json(out / MANIFEST, fresh.model_dump(mode="json"))

    def _with_windows(self, windows: int) -> PerplexityManifest:
        ids = self.run.drawn.ids[:windows]
        cut = self.manifest.dataset.model_copy(update={"windows": windows, "tokens_sha256": _token_hash(ids)})
        return self.manifest.model_copy(update={"dataset": cut})

    def finished(self) -> dict[int, WindowScores]:
        """The whole windows of this run that the folder holds. Damaged ones are left out, and named on stderr."""
        found = {}
        for window in range(self.run.windows):
            if (self.path / window_file(window, "json")).is_file():
                try:
                    found[window] = self._read(window)
                except InputError as e:
                    if is_first():
                        print(f"tq: {str(e).partition(';')[0]}; measuring window {window} again", file=sys.stderr)
        self._kept |= set(found)
        return found

    def add(self, scores: WindowScores) -> None:
        """Writes a finished window, whole and renamed. Raises `InputError` if the disk refuses."""
        record = WindowRecord(
            window=scores.window,
            settings_sha256=self.manifest.settings_sha256,
            tokens_sha256=_token_hash(self.run.drawn.ids[scores.window]),
            text_bytes=scores.text_bytes,
            baseline=scores.baseline,
            readings=list(scores.readings.items()),
            backends=scores.backends,
        )
        of_cases = [[getattr(scores.scores[case], name) for name in _SCORES] for case in scores.readings]
        # As their bits: MLX writes no float64.
        bits = np.array(of_cases, dtype=np.float64).view(np.uint64)
        metadata = {"format": _FORMAT, "record": record.model_dump_json()}
        file = write_shard(self.path, window_file(scores.window), {"scores": mx.array(bits)}, metadata)
        write_json(self.path / window_file(scores.window, "json"), asdict(file))
        self._kept.add(scores.window)

    def add_missing(self) -> None:
        """Writes those windows that are finished and not in the folder: where Ctrl-C came in between, for instance."""
        for window in sorted(set(self.run.finished) - self._kept):
            if not (self.path / window_file(window, "json")).is_file():
                self.add(self.run.finished[window])

    def save_result(self, result: Result) -> None:
        """Writes what the run came to."""
        document = json.loads(result.to_json())
        if not (self.path / RESULT).is_file() or read_json(self.path / RESULT) != document:
            write_json(self.path / RESULT, document)

    def _read(self, window: int) -> WindowScores:
        path, run = self.path / window_file(window), self.run
        try:
            entry = FileEntry.model_validate(read_json(path.with_suffix(".json")))
            arrays, metadata = read_shard(self.path, FileRecord(path.name, entry.bytes, entry.sha256))
            record = WindowRecord.model_validate_json(metadata["record"])
            scores = np.array(arrays["scores"]).view(np.float64)
        except (ValidationError, KeyError, ValueError) as e:
            raise InputError(f"{path} is damaged") from e
        made_with = record.window, record.settings_sha256, record.tokens_sha256
        if made_with != (window, self.manifest.settings_sha256, _token_hash(run.drawn.ids[window])):
            raise InputError(f"{path} is of another run")
        cases = [case for case, _ in record.readings]
        if (
            len(cases) != len(run.cases)
            or set(cases) != set(run.cases)
            or scores.shape != (len(run.cases), len(_SCORES), run.scored)
        ):
            raise InputError(f"{path} doesn't hold what is measured")
        return WindowScores(
            window,
            record.text_bytes,
            record.baseline,
            dict(record.readings),
            {case: TokenScores(*of_case) for case, of_case in zip(cases, scores, strict=True)},
            record.backends,
        )


def _token_hash(ids: NDArray[np.int32]) -> str:
    return sha256_bytes(ids.astype("<i4").tobytes())


def _shards_hash(capture: CaptureManifest) -> str:
    return sha256_bytes("".join(shard.sha256 for shard in capture.shards).encode())


def _manifest(run: PerplexityRun, calibration: Capture | None) -> PerplexityManifest:
    learned_from = None if calibration is None else calibration.manifest
    named = run.plans[: len(run.plans) - len(run.floors)]  # `rechunk` says whether there are floors
    return PerplexityManifest(
        tq_version=__version__,
        mlx_version=version("mlx"),
        mlx_lm_version=version("mlx-lm"),
        backend=device_name(),
        kernel_backend=preferred()[0],
        model=model_record(run.loaded),
        dataset=dataset_record(run.text, run.drawn, run.seed),
        codecs=[str(plan.codec) for plan in named],
        layer_bits=[dict(plan.layer_bits) for plan in named],
        sinks=run.plans[0].sinks,
        recent=run.plans[0].recent,
        calibration=None if learned_from is None else learned_from.dataset,
        calibration_sha256=None if learned_from is None else _shards_hash(learned_from),
        chunk=run.chunk,
        rechunk=run.rechunk,
        stride=run.scored,
        per_layer=run.per_layer if isinstance(run.per_layer, bool) else sorted(set(run.per_layer)),
        cache_dtype=cast(Dtype, run.cache_dtype or run.loaded.compute_dtype),
    )
