"""Broken GGUF files end in one clear line, wherever they are broken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_gguf import write_gguf
from tiny_models import write_tiny_model

from tqcli.errors import InputError
from tqcli.models.gguf_model import convert


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("whole")
    model = write_tiny_model(folder / "model", layers=1, hidden=32, heads=2, kv_heads=1)
    return write_gguf(model, folder / "whole.gguf").read_bytes()


def _convert(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("broken")
    (folder / "broken.gguf").write_bytes(data)
    (folder / "out").mkdir()
    convert(folder / "broken.gguf", folder / "out")


@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file(share: float, whole: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    cut = whole[: int(share * len(whole.rstrip(b"\0")))]
    with pytest.raises(InputError) as error:
        _convert(cut, tmp_path_factory)
    assert "broken.gguf" in str(error.value)
    assert "\n" not in str(error.value)


@given(changes=st.dictionaries(st.integers(0, 14_000), st.integers(0, 255), min_size=1, max_size=4))
def test_a_header_with_wrong_bytes_converts_or_says_why(
    changes: dict[int, int], whole: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(whole)
    for at, byte in changes.items():
        data[at] = byte
    try:
        _convert(bytes(data), tmp_path_factory)
    except InputError as e:
        assert "\n" not in str(e)


@pytest.mark.parametrize("data", [b"", b"GG", b"GGUF", b"PK\3\4" * 100, b"GGUF" + b"\xff" * 200])
def test_no_gguf_at_all(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(InputError, match=r"broken\.gguf is not a"):
        _convert(data, tmp_path_factory)
