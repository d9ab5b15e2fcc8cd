"""What tests that need an NVIDIA GPU (`make test-cuda`) import: a fixture that skips them elsewhere, and one for all.

Not a conftest.py, which would hide the one above it from `import conftest`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tqcli  # noqa: F401  # before mlx.core

# isort: split
import mlx.core as mx

from tqcli.kernels.runtime import reset_used, set_backend


@pytest.fixture(autouse=True, scope="session")
def cuda() -> None:
    """Skips where there is no NVIDIA GPU. Besides, only what opens reports in a browser is ever skipped."""
    if not mx.cuda.is_available():
        pytest.skip("MLX finds no CUDA device; on a machine with an NVIDIA GPU: make test-cuda")


@pytest.fixture(autouse=True)
def no_back_end_named(cuda: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TQ_BACKEND", raising=False)
    set_backend(None)
    reset_used()
    yield
    set_backend(None)
