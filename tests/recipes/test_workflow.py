"""The example workflow is one that GitHub would take."""

from __future__ import annotations

from pathlib import Path

import yaml

WORKFLOW = Path(__file__).resolve().parents[2] / "docs" / "examples" / "github-workflow.yml"


def test_every_step_runs_or_uses_something_and_the_report_is_kept_whatever_the_gates_say() -> None:
    document = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    assert set(document) == {"name", True, "permissions", "jobs"}  # YAML 1.1 reads the key `on` as true
    (job,) = document["jobs"].values()
    steps = job["steps"]
    assert all(("run" in step) != ("uses" in step) for step in steps)
    gated = next(at for at, step in enumerate(steps) if "tq run" in step.get("run", ""))
    assert "--ci github" in steps[gated]["run"]
    after = {step["uses"].partition("@")[0]: step for step in steps[gated + 1 :]}
    assert set(after) == {"actions/cache/save", "actions/upload-artifact"}
    assert all(step["if"] == "${{ !cancelled() }}" for step in after.values())
    restore = next(step for step in steps if "cache/restore" in step.get("uses", ""))
    for name in ("path", "key"):
        assert restore["with"][name] == after["actions/cache/save"]["with"][name]
