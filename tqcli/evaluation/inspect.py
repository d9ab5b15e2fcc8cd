"""What the folder of a run, or of a perplexity run, holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tqcli.errors import InputError
from tqcli.evaluation.perplexity_folder import WINDOW_DONE, PerplexityManifest
from tqcli.manifests import FileEntry, read_manifest
from tqcli.report.load import RESULT, load_run
from tqcli.storage import FileRecord, read_json, verify


def inspect_run(folder: Path) -> dict[str, Any]:
    """A flat description of what `tq run` wrote. Raises `InputError` for a damaged result."""
    run = load_run(folder)
    verdicts = [gate.verdict for gate in run.gates]
    judged = [f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts)]
    return {
        "kind": "run",
        "name": run.name,
        "model": f"{run.model.get('name')} ({run.model.get('model_type')}, run in {run.model.get('compute_dtype')})",
        "dataset": f"{run.dataset.get('spec')} (seed {run.dataset.get('seed')})",
        "codecs": ", ".join(codec.name for codec in run.codecs),
        "measures": ", ".join(run.measures),
        "gates": ", ".join(judged) or "none",
        "failed steps": len(run.failures),
        "files": ", ".join(sorted(path.name for path in folder.iterdir() if path.is_file())),
        "made by": f"tq {run.environment.tq}, mlx {run.environment.mlx}, {run.environment.device}",
    }


def inspect_perplexity(folder: Path) -> dict[str, Any]:
    """A flat description of what `tq eval perplexity` keeps; every window's size and sha256 is verified.

    Raises `InputError` for a broken manifest, and a missing, truncated or changed file.
    """
    m = read_manifest(folder, PerplexityManifest, "a perplexity run", "tq eval perplexity")
    records = []
    for path in sorted(folder.iterdir()):
        if WINDOW_DONE.fullmatch(path.name):
            try:
                entry = FileEntry.model_validate(read_json(path))
            except ValueError as e:
                raise InputError(f"{path} is damaged; measure that window again with --resume") from e
            records.append(FileRecord(entry.file, entry.bytes, entry.sha256))
    for record in records:
        verify(folder, record)
    unfinished = "" if len(records) >= m.dataset.windows else " (unfinished: go on with --resume)"
    return {
        "kind": "perplexity run",
        "model": f"{m.model.name} ({m.model.model_type}, run in {m.model.compute_dtype})",
        "dataset": f"{m.dataset.spec} (seed {m.dataset.seed})",
        "codecs": ", ".join(m.codecs),
        "sinks, recent": f"{m.sinks}, {m.recent}",
        "windows": f"{len(records)} of {m.dataset.windows}{unfinished}",
        "tokens a window": m.dataset.tokens,
        "result": "written" if (folder / RESULT).is_file() else "not yet",
        "made by": f"tq {m.tq_version}, mlx {m.mlx_version}, {m.backend}",
        "checksums": f"{len(records)} files verified",
    }
