from __future__ import annotations

from pathlib import Path

import pytest

from tqcli.errors import InputError
from tqcli.models import resolve
from tqcli.models.packaged import PACKAGED, pulled_folder


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TQ_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_a_short_name_is_a_packaged_model() -> None:
    source = resolve("smollm2-135m")
    assert (source.kind, source.path) == ("packaged", None)
    assert source.revision == PACKAGED["smollm2-135m"].gguf_sha256


def test_a_half_made_folder_does_not_count_as_pulled() -> None:
    pulled_folder("smollm2-135m").mkdir(parents=True)
    (pulled_folder("smollm2-135m") / "config.json").write_text("{}")
    assert resolve("smollm2-135m").path is None


def test_a_folder_with_a_config_is_a_model_even_if_it_looks_like_a_hub_id(tmp_path: Path) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    (tmp_path / "org" / "model" / "config.json").write_text("{}")
    source = resolve("org/model")
    assert (source.kind, source.path) == ("folder", Path("org/model"))


@pytest.mark.parametrize("name", ["model.gguf", "MODEL.GGUF"])
def test_a_gguf_file(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    source = resolve(name)
    assert (source.kind, source.path) == ("gguf", Path(name))


@pytest.mark.parametrize(
    ("name", "hub_id", "revision"),
    [("org/model-1.5B", "org/model-1.5B", None), ("org/model@v1", "org/model", "v1")],
)
def test_anything_else_with_one_slash_is_a_hub_id(name: str, hub_id: str, revision: str | None) -> None:
    source = resolve(name)
    assert (source.kind, source.hub_id, source.revision, source.path) == ("hub", hub_id, revision, None)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("smollm", "there is no model 'smollm'; nearest is smollm2-135m"),
        ("gpt5", "nearest is smollm2-135m"),
        ("./nowhere", "the model folder ./nowhere doesn't exist"),
        ("a/b/c", "the model folder a/b/c doesn't exist"),
        ("~/no/such/model", "the model folder ~/no/such/model doesn't exist"),
        ("lost.gguf", "the model file lost.gguf doesn't exist"),
        ("org/lost.gguf", "the model file org/lost.gguf doesn't exist"),
        ("notes.txt", "notes.txt is a file but not a .gguf one"),
        ("empty", "empty is not a model folder: it has no config.json"),
        ("", "empty or broken"),
        ("x" * 5000, "can't look at the model xxx"),
    ],
)
def test_what_is_no_model_is_one_clear_line(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError) as error:
        resolve(name)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
