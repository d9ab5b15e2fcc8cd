"""Attention over packed keys and packed values, and an uncompressed rest, in one pass."""

from tqcli.kernels.attend.checks import QUERIES_AT_MOST, refused
from tqcli.kernels.attend.launch import attend, attend_by, unlaunchable
from tqcli.kernels.attend.parts import Seen
from tqcli.kernels.attend.readers import Groups, Levels, Offset, Raw, Reader, Tokens, Vectors

__all__ = [
    "QUERIES_AT_MOST",
    "Groups",
    "Levels",
    "Offset",
    "Raw",
    "Reader",
    "Seen",
    "Tokens",
    "Vectors",
    "attend",
    "attend_by",
    "refused",
    "unlaunchable",
]
