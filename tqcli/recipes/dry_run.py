"""What a run would do: its steps, which are done already, and what the others are likely to take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tqcli.recipes.cost import Estimate
from tqcli.recipes.runner import Study
from tqcli.recipes.steps import CaptureStep


def plan_of(study: Study, folder: Path, estimate: Estimate) -> dict[str, Any]:
    """The steps as JSON types: captures, then each measure of each codec."""
    steps = [_capture(step, step in study.steps.captures_to_do) for step in study.steps.captures]
    steps += [
        {"step": step.measure, "codec": step.codec.name, "state": "to do" if step.finished is None else "cached"}
        for step in study.steps.measures
    ]
    return {
        "name": study.recipe.name,
        "model": study.recipe.model,
        "out": str(folder),
        "cache": str(study.store.folder),
        "steps": steps,
        "to_do": sum(step["state"] == "to do" for step in steps),
        "seconds": estimate.seconds,
        "capture_bytes": estimate.capture_bytes,
    }


def plan_lines(plan: dict[str, Any]) -> list[str]:
    """The plan for a terminal: a line a capture and a measure, and what it comes to."""
    lines = [f"{plan['name']}: {len(plan['steps'])} steps, {plan['to_do']} to do; model {plan['model']}"]
    for step in plan["steps"]:
        if step["codec"] is None:
            lines.append(f"{step['step']}: {step['what']}: {step['state']}")
    measured = dict.fromkeys(step["step"] for step in plan["steps"] if step["codec"] is not None)
    for measure in measured:
        of = [step for step in plan["steps"] if step["step"] == measure and step["codec"] is not None]
        waiting = [step["codec"] for step in of if step["state"] == "to do"]
        lines.append(
            f"{measure}: {', '.join(waiting) or 'nothing'} to do; {len(of) - len(waiting)} of {len(of)} cached"
        )
    if plan["to_do"]:
        lines.append(_estimate(plan))
    lines.append(f"cache: {plan['cache']}; report: {plan['out']}")
    return lines


def _capture(step: CaptureStep, to_do: bool) -> dict[str, Any]:
    settings = step.settings
    state = "to do" if to_do else "cached" if step.is_done else "not needed"
    what = f"{settings.windows} windows of {settings.tokens} tokens of {settings.spec}, seed {step.seed}"
    return {"step": step.name, "codec": None, "state": state, "what": what}


def _estimate(plan: dict[str, Any]) -> str:
    if plan["seconds"] is None:
        return "time: unknown, because the model isn't here yet as a folder; a run fetches or converts it first"
    size = plan["capture_bytes"]
    disk = "" if not size else f"; captures take {size / 1e6:.0f} MB"
    return f"time: {_rounded(plan['seconds'])} by the model's size and the speed of a matrix product here{disk}"


def _rounded(seconds: float) -> str:
    """One significant digit or two: it is no more than a guess."""
    return f"about {seconds / 60:.0f} minutes" if seconds > 150 else f"about {max(1, round(seconds, -1)):.0f} s"
