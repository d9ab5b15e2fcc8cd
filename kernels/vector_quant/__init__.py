"""Vector quantisation: each sub-vector to the index of the nearest entry of a codebook, and back; scores by look-up."""

from tqcli.kernels.vector_quant.launch import vector_dequantise, vector_quantise, vector_scores

__all__ = ["vector_dequantise", "vector_quantise", "vector_scores"]
