"""Reads GGUF files: metadata, and tensors dequantised to float32. Every way to be broken ends in one clear line."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tqcli.errors import InputError

# What the reader raises on bytes that make no sense.
_BROKEN = (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, MemoryError, struct.error)
_MAGIC = b"GGUF"


class GGUFFile:
    """An open GGUF file (format version 2 or 3)."""

    def __init__(self, path: Path) -> None:
        """Reads the header; tensors are mapped and read when asked for. Raises `InputError` for a broken file."""
        from gguf import GGUFReader

        self.path = path
        try:
            with path.open("rb") as f:
                magic = f.read(4)
        except OSError as e:
            raise InputError(f"can't read {path}: {e.strerror}") from e
        if magic != _MAGIC:
            raise InputError(f"{path} is not a GGUF file (it doesn't start with GGUF); download it anew")
        try:
            with np.errstate(over="ignore"):
                reader = GGUFReader(path)
            self.metadata: dict[str, Any] = {key: field.contents() for key, field in reader.fields.items()}
            self._tensors = {str(tensor.name): tensor for tensor in reader.tensors}
        except (*_BROKEN, OSError) as e:
            raise self.broken(f"it can't be read: {_first_line(e)}") from e
        if not self._tensors:
            raise self.broken("it holds no tensors (a vocabulary alone, or a part of a split file)")

    @property
    def architecture(self) -> str:
        """The model's kind, for example "llama"."""
        return str(self.metadata.get("general.architecture"))

    @property
    def names(self) -> list[str]:
        """Names of the tensors, in the file's order."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, rows first as in MLX and NumPy."""
        if name not in self._tensors:
            raise self.broken(f"the tensor {name} is missing")
        return tuple(int(n) for n in reversed(self._tensors[name].shape))

    def quantisations(self) -> set[str]:
        """Names of the number formats in use, for example {"F32", "Q4_1"}."""
        return {str(tensor.tensor_type.name) for tensor in self._tensors.values()}

    def read(self, name: str) -> NDArray[np.float32]:
        """A tensor in float32, dequantised where needed. Raises `InputError` for a format that can't be."""
        from gguf import dequantize

        tensor = self._tensors[name]
        try:
            array = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        except NotImplementedError as e:
            raise InputError(
                f"{self.path}: {name} is in {tensor.tensor_type.name}, which can't be dequantised here; "
                "use another quantisation or an mlx-lm folder of this model"
            ) from e
        except _BROKEN as e:
            raise self.broken(f"{name} can't be read: {_first_line(e)}") from e
        return array.reshape(self.shape(name))

    def broken(self, what: str) -> InputError:
        """The error for a file that lacks something or contradicts itself."""
        return InputError(f"{self.path} is not a whole GGUF model: {what}; download it anew")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
