"""Where text comes from, and how it is cut into windows of tokens."""

from tqcli.datasets.document import Document, Text
from tqcli.datasets.text import load_text
from tqcli.datasets.windows import TokenWindows, token_windows

__all__ = ["Document", "Text", "TokenWindows", "load_text", "token_windows"]
