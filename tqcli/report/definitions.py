"""What each metric is, in a line, for the report's last section. docs/evaluate.md says it at length."""

from __future__ import annotations

DEFINITIONS = {
    "relative_mse": "squared error of the decoded vectors over their energy, all tokens and heads pooled",
    "relative_mse_theory": "what the codec's own theory expects of it, times the energy that centring left",
    "cosine": "cosine of decoded and exact vector, mean over vectors",
    "snr_db": "-10 log10 of the relative MSE",
    "worst_vector": "largest relative squared error of one vector",
    "ip_bias": "mean error of the products of captured queries with keys, over the norms of both",
    "ip_slope": "least-squares slope of the estimated on the exact products; 1 where they aren't shrunk",
    "ip_variance_d": "variance of that error times head_dim",
    "ip_variance_d_theory": "what the codec's own theory expects of it for queries of random direction",
    "attention_error": "squared error of a head's attention output over its energy, mean over layers",
    "attention_kl": "KL divergence of the coded from the exact attention weights, mean over queries, heads and layers",
    "logit_correlation": "correlation of exact and coded logits within a query, mean over heads and layers",
    "topk_overlap": "share of the keys with most weight that stay among them, mean over layers",
    "ppl": "token perplexity of the scored tokens through the codec",
    "ppl_base": "the same of the uncompressed model",
    "ppl_delta_percent": "change of the perplexity",
    "bits_per_byte": "negative log-likelihood in bits over the UTF-8 bytes of the scored text",
    "kl_mean": "KL divergence of the coded from the uncompressed distribution of the next token, mean over tokens",
    "kl_p99_9": "its 99.9th percentile over tokens",
    "kl_p99": "its 99th percentile",
    "kl_p95": "its 95th percentile",
    "kl_p90": "its 90th percentile",
    "kl_p50": "its median",
    "kl_p10": "its 10th percentile",
    "kl_mean_rechunked": "mean KL between two runs in steps of other lengths: the floor of float noise",
    "kl_p99_9_rechunked": "99.9th percentile of the same",
    "same_top1_rechunked": "share of tokens whose likeliest successor is the same in both runs",
    "ppl_delta_percent_rechunked": "change of the perplexity between both runs",
    "rms_delta_p": "root mean square of the change of the right token's probability",
    "same_top1": "share of scored tokens whose likeliest successor stays",
    "tokens_per_second": "tokens read a second, without the output head",
    "bits_nominal": "what a user calls the codec by",
    "bits_effective": "8 times all live bytes over the elements: codes, scales, means, padding, uncompressed tokens",
    "bytes_resident": "sum of the sizes of all live buffers, measured",
    "bytes_nominal": "the same by formula; bytes_nominal_N: of one cache of N tokens",
    "bytes_disk": "size of the files",
    "bytes_fp16": "2 bytes an element, nothing else; bytes_fp16_N as above",
    "ratio": "bytes_fp16 over bytes_resident",
    "peak_bytes": "most memory beyond the input, while encoding or reading",
}
_OF_LAYERS = ("_median", "_worst", "_worst_layer")


def is_derived(metric: str) -> bool:
    """Whether a name is another's with what is done to it over layers, or at which context length, at its end."""
    name, _, last = metric.rpartition("_")
    return (last.isdigit() and name in DEFINITIONS) or any(
        metric.endswith(ending) and metric.removesuffix(ending) in DEFINITIONS for ending in _OF_LAYERS
    )
