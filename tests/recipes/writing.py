"""Writes recipes and reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tqcli.errors import InputError
from tqcli.recipes.load import load_recipe
from tqcli.recipes.schema import Recipe

PLAIN = "name: mine\ncodecs: [affine@4]\n"


def read(folder: Path, text: str | bytes, *changes: str) -> Recipe:
    """The recipe of a file `mine.yaml` that holds `text`."""
    file = folder / "mine.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_recipe(str(file), changes)


def refused(folder: Path, text: str | bytes, *changes: str) -> str:
    """The one line that such a file is refused with, without the name of the folder."""
    with pytest.raises(InputError) as error:
        read(folder, text, *changes)
    assert "\n" not in str(error.value)
    return str(error.value).replace(f"{folder}/", "")
