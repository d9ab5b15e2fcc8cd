"""A compressed KV cache for mlx-lm: the prompt cache's entries, and the hook by which attention reads them."""

from tqcli.cache.build import CompressedCaches, Uncompressed, compress_cache
from tqcli.cache.compressed import CompressedKVCache
from tqcli.cache.hook import compressed_attention, install, uninstall
from tqcli.cache.tensor import TensorCache

__all__ = [
    "CompressedCaches",
    "CompressedKVCache",
    "TensorCache",
    "Uncompressed",
    "compress_cache",
    "compressed_attention",
    "install",
    "uninstall",
]
