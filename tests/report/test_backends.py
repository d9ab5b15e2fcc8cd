"""Which back-end each operation took, as lines for a terminal."""

from __future__ import annotations

from tqcli.kernels.runtime import Use
from tqcli.report.backends import backend_lines

GPU, NO_GPU = "MLX computes on this GPU", "MLX finds no GPU"


def test_one_line_where_all_operations_were_alike() -> None:
    uses = [Use("attend", "mlx", NO_GPU, 7), Use("bit_pack", "mlx", NO_GPU, 30)]
    assert backend_lines(uses) == ["Operations: plain MLX (MLX finds no GPU)"]
    assert backend_lines([Use("attend", "metal", GPU, 1)]) == ["Operations: Metal kernels (MLX computes on this GPU)"]
    assert backend_lines([]) == []


def test_what_differs_has_a_line_with_its_share_of_the_calls_and_the_reason() -> None:
    uses = [
        Use("attend", "cuda", GPU, 36),
        Use("attend", "mlx", "a mask that is an array", 12),
        Use("bit_pack", "mlx", "plain operations were faster at every size", 500),
        Use("hadamard_quantise", "cuda", GPU, 4),
    ]
    assert backend_lines(uses) == [
        "Operations: CUDA kernels (MLX computes on this GPU), but for",
        "  attend: plain MLX, 12 of 48 calls: a mask that is an array",
        "  bit_pack: plain MLX, 500 of 500 calls: plain operations were faster at every size",
    ]


def test_of_plain_operations_the_reason_of_most_calls_comes_first() -> None:
    uses = [Use("attend", "mlx", NO_GPU, 3), Use("attend", "mlx", "named by --backend", 5)]
    assert backend_lines(uses) == [
        "Operations: plain MLX (named by --backend), but for",
        "  attend: plain MLX, 3 of 8 calls: MLX finds no GPU",
    ]
