"""Models and machines that tests of several packages use."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import pytest
from tiny_models import write_tiny_model

from tqcli.kernels.runtime import backend
from tqcli.models import LoadedModel, load

if find_spec("hypothesis"):  # tests/cuda does without
    from hypothesis import settings

    # No deadlines: timings are for benchmarks, and the first call of a shape compiles and fills caches.
    settings.register_profile("tq", deadline=None, max_examples=40)
    settings.load_profile("tq")


class TinyModelDir(Protocol):
    def __call__(self, model_type: str = "llama", **sizes: Any) -> Path: ...


class NeverFaster(dict[str, int]):
    """Crossover sizes that no call reaches."""

    def get(self, key: str, default: Any = None) -> Any:
        return backend.NEVER


@pytest.fixture
def gpu_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with a GPU whose kernels are never worth a launch: plain operations, each for its own reason."""
    monkeypatch.setattr(backend, "preferred", lambda: ("cuda", "MLX computes on this GPU"))
    monkeypatch.setattr(backend, "CROSSOVER", NeverFaster())


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """SmolLM2-135M-Instruct, fetched into the user's own cache folder at the first use. Don't change its weights."""
    return load("smollm2-135m")


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> TinyModelDir:
    """Makes folders of random-weight models; the arguments are `write_tiny_model`'s."""

    def make(model_type: str = "llama", **sizes: Any) -> Path:
        return write_tiny_model(tmp_path_factory.mktemp(model_type) / "model", model_type, **sizes)

    return make
