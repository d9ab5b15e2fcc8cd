"""Inner products estimated from scalar codes of rotated vectors and a one-bit sketch of what those leave."""

from tqcli.kernels.prod_scores.coded import Residuals, Rotated
from tqcli.kernels.prod_scores.launch import prod_scores

__all__ = ["Residuals", "Rotated", "prod_scores"]
