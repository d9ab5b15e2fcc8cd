"""Scalar quantisation: each element to the index of the nearest level of one codebook, and back."""

from tqcli.kernels.scalar_quant.launch import scalar_dequantise, scalar_quantise

__all__ = ["scalar_dequantise", "scalar_quantise"]
