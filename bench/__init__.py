"""Timings, run by `make bench`; no test depends on them."""

import tqcli  # noqa: F401  # before any bench imports MLX, so that the fast BLAS is in front
