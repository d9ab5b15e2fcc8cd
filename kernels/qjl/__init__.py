"""Signs of a random projection (a one-bit sketch) of whole vectors, and inner products estimated from them."""

from tqcli.kernels.qjl.launch import sketch_scores, sketch_signs, unsketch

__all__ = ["sketch_scores", "sketch_signs", "unsketch"]
