from __future__ import annotations

import json
from pathlib import Path

import pytest

from tqcli.cli.doctor import doctor
from tqcli.doctor import examine
from tqcli.kernels.checker.compiler import compiler


def test_names_what_will_be_used() -> None:
    found = examine()
    assert found.versions["tq"]
    assert found.versions["mlx"]
    assert found.default_device in ("cpu", "gpu")
    assert any(device.startswith(f"{found.default_device}:") for device in found.devices)
    assert {backend.name for backend in found.backends} == {"metal", "cuda", "mlx"}
    assert found.backend in {backend.name for backend in found.backends if backend.available}
    assert found.blas.name
    assert found.blas.gflops is not None
    assert found.blas.gflops > 0
    assert "smollm2-135m" in found.models


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    doctor(json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["blas"]["name"]
    assert document["versions"]["python"]


def test_text_names_the_blas_and_the_back_end_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    doctor(json=False)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("BLAS ") and "GFLOP/s" in line for line in lines)
    assert sum("used: " in line for line in lines if line.startswith("back-end")) == 1


def test_programs_for_checking_kernels_are_named_or_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    compiler.cache_clear()
    try:
        cpp, clang = examine().tools
    finally:
        compiler.cache_clear()
    assert cpp.name == "C++ compiler" and cpp.path is None
    assert cpp.reason.startswith("CXX is 'no-such-compiler', and there is no program no-such-compiler: name g++")
    assert clang.name == "clang" and (clang.path or "apt install clang" in clang.reason)


def test_a_back_end_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TQ_BACKEND", "foo")
    found = examine()
    assert found.backend is None
    assert any(warning.startswith("TQ_BACKEND is foo: there is no such back-end") for warning in found.warnings)


def test_another_owner_of_the_script_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tqkit-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: tqkit\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[console_scripts]\ntq = tqkit:main\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert any("tqkit" in warning for warning in examine().warnings)


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TQ_CACHE", str(tmp_path / "file" / "cache"))
    found = examine()
    assert not found.cache_writable
    assert any("TQ_CACHE" in warning for warning in found.warnings)


def test_a_missing_model_is_told_and_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TQ_CACHE", str(tmp_path))
    assert examine().models == {"smollm2-135m": None}
    assert list(tmp_path.iterdir()) == []
