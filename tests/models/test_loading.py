from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import mlx.core as mx
import pytest
from mlx_lm.convert import convert

from tqcli.errors import InputError
from tqcli.models import load

Damage = Callable[[Path], object]
IDS = mx.array([[5, 50, 120, 7, 200, 9]])


class TinyModelDir(Protocol):
    def __call__(self, model_type: str = "llama", **sizes: Any) -> Path: ...


def _edit_config(**changes: Any) -> Damage:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | changes
        config = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))

    return edit


def _write(name: str, text: str) -> Damage:
    return lambda folder: (folder / name).write_text(text)


def _remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def _truncate(name: str, size: int) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


@pytest.mark.parametrize("stored", ["float16", "bfloat16", "float32"])
def test_the_stored_dtype_is_the_weights_own(stored: str, tiny_model_dir: TinyModelDir) -> None:
    folder = tiny_model_dir("qwen2", dtype=stored)
    _edit_config(torch_dtype="float16")(folder)
    loaded = load(str(folder))
    assert (loaded.stored_dtype, loaded.source.kind, loaded.path) == (stored, "folder", folder)
    assert loaded.revision is None


def test_a_model_runs_in_float32_on_a_cpu_and_in_the_dtype_asked_for(tiny_model_dir: TinyModelDir) -> None:
    folder = str(tiny_model_dir())
    with mx.stream(mx.cpu):
        default, asked = load(folder), load(folder, dtype="bfloat16")
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    assert default.compute_dtype == ("float32" if on_cpu else "float16")
    assert str(default.model(IDS).dtype) == f"mlx.core.{default.compute_dtype}"
    assert (asked.compute_dtype, asked.model(IDS).dtype) == ("bfloat16", mx.bfloat16)
    assert asked.stored_dtype == "float16"


def test_an_unknown_dtype_is_one_clear_line(tiny_model_dir: TinyModelDir) -> None:
    with pytest.raises(InputError, match="float32, not 'int8'"):
        load(str(tiny_model_dir()), dtype="int8")


def test_the_same_folder_has_the_same_hashes_and_another_has_others(tiny_model_dir: TinyModelDir) -> None:
    first, again, other = (load(str(tiny_model_dir(seed=seed))) for seed in (0, 0, 1))
    assert first.weights_sha256 == again.weights_sha256 != other.weights_sha256
    assert first.tokenizer_sha256 == again.tokenizer_sha256 == other.tokenizer_sha256
    assert first.config_sha256 == again.config_sha256
    _edit_config(rope_theta=5000.0)(other.path)
    assert load(str(other.path)).config_sha256 != other.config_sha256


def test_a_quantised_model_loads_and_has_the_dtype_of_its_scales(tiny_model_dir: TinyModelDir, tmp_path: Path) -> None:
    folder = tiny_model_dir(hidden=64, dtype="bfloat16")
    convert(str(folder), str(tmp_path / "q4"), quantize=True, q_bits=4, q_group_size=32)
    loaded, plain = load(str(tmp_path / "q4")), load(str(folder))
    assert loaded.stored_dtype == "bfloat16"
    assert mx.abs(loaded.model(IDS) - plain.model(IDS)).mean() < 0.5


def test_weights_in_several_files_load(tiny_model_dir: TinyModelDir) -> None:
    folder = tiny_model_dir()
    expected = load(str(folder)).model(IDS)
    weights = cast(dict[str, mx.array], mx.load(str(folder / "model.safetensors")))
    half = len(weights) // 2
    files = {"model-00001-of-00002.safetensors": list(weights)[:half], "model-00002-of-00002.safetensors": []}
    files["model-00002-of-00002.safetensors"] = list(weights)[half:]
    for file, names in files.items():
        mx.save_safetensors(str(folder / file), {name: weights[name] for name in names}, {"format": "mlx"})
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, names in files.items() for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert mx.array_equal(load(str(folder)).model(IDS), expected)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"lacks model-00002-of-00002\.safetensors"):
        load(str(folder))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_write("config.json", "{"), "config.json is not valid JSON"),
        (_write("config.json", "[1, 2]"), "names no model_type"),
        (_edit_config(model_type=None), "names no model_type"),
        (_edit_config(model_type="no_such_kind"), "no_such_kind not supported"),
        (_edit_config(hidden_size=None), "hidden_size"),
        (_edit_config(num_attention_heads=3), "Expected shape (48, 64)"),
        (_edit_config(num_hidden_layers=5), "can't load the model"),
        (_edit_config(model_file="evil.py"), "custom module"),
        (_remove("model.safetensors"), "its weights are missing"),
        (_truncate("model.safetensors", 1000), "not a whole safetensors file"),
        (_truncate("model.safetensors", 60_000), "can't load the model"),
        (_write("model.safetensors", ""), "not a whole safetensors file"),
        (_write("model.safetensors.index.json", "[]"), "lists no weights"),
        (_remove("tokenizer.json"), "its tokenizer is missing"),
        (_write("tokenizer.json", "{}"), "can't load the model"),
        (_write("tokenizer.json", "not json"), "can't load the model"),
    ],
)
def test_a_damaged_folder_is_one_clear_line(damage: Damage, said: str, tiny_model_dir: TinyModelDir) -> None:
    folder = tiny_model_dir()
    damage(folder)
    with pytest.raises(InputError) as error:
        load(str(folder))
    message = str(error.value)
    assert said in message
    assert str(folder) in message
    assert "\n" not in message
    assert len(message) < 600


def test_a_config_that_the_tokenizers_library_refuses_is_one_clear_line(tiny_model_dir: TinyModelDir) -> None:
    with pytest.raises(InputError, match=r"64\) is not a multiple of the number of attention heads \(6\)"):
        load(str(tiny_model_dir(hidden=64, heads=6)))


def test_code_in_a_model_folder_is_not_run(tiny_model_dir: TinyModelDir, tmp_path: Path) -> None:
    folder = tiny_model_dir()
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    _edit_config(model_file="evil.py")(folder)
    with pytest.raises(InputError):
        load(str(folder))
    assert not (tmp_path / "ran").exists()


# --- the hub


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub's library, which reads its settings when it is imported."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def test_a_hub_model_without_network_is_one_clear_line(hub_cache: Path) -> None:
    with pytest.raises(InputError) as error:
        load("some-org/some-model")
    message = str(error.value)
    assert message.startswith("can't fetch the model some-org/some-model from the hub: it can't be reached")
    assert "smollm2-135m" in message
    assert "\n" not in message


def test_a_hub_that_does_not_answer_is_one_clear_line(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match="it can't be reached") as error:
        load("some-org/some-model")
    assert "127.0.0.1" not in str(error.value)


def test_a_hub_model_that_is_here_loads_without_network(hub_cache: Path, tiny_model_dir: TinyModelDir) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = hub_cache / "models--some-org--some-model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    folder = tiny_model_dir()
    shutil.copytree(folder, repository / "snapshots" / commit)
    loaded, original = load("some-org/some-model"), load(str(folder))
    assert (loaded.source.kind, loaded.revision) == ("hub", commit)
    assert loaded.weights_sha256 == original.weights_sha256
    assert mx.array_equal(loaded.model(IDS), original.model(IDS))
