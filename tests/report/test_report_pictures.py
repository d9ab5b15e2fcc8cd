from __future__ import annotations

import math
from itertools import combinations, pairwise

import pytest
from made_reports import made_run

from tqcli.report.compared import compared
from tqcli.report.pictures import distortion_pictures, divergence_picture
from tqcli.report.plot import CHARACTER, LINE, SHAPES, Plot, marker_path
from tqcli.report.run import RunResult
from tqcli.report.schema import Metric

MANY = [f"{name}@{bits}" for name in "abcdefghijklmnopq" for bits in (2, 4)]


def divergence(run: RunResult) -> Plot:
    plot = divergence_picture(run, compared(run))
    assert plot is not None
    return plot


def boxes(plot: Plot) -> list[tuple[float, float, float, float]]:
    middles = [(label.x, label.y - 4, CHARACTER * len(label.text)) for label in plot.labels]
    return [(x, y - LINE / 2, x + width, y + LINE / 2) for x, y, width in middles]


@pytest.mark.parametrize("same", [False, True], ids=["apart", "on one spot"])
@pytest.mark.parametrize("count", [1, 4, 12, 34])
def test_labels_never_cover_each_other_and_stay_inside(count: int, same: bool) -> None:
    errors = {name: 0.1 if same else 4.0 ** -(index % 7 + 1) for index, name in enumerate(MANY[:count])}
    plot = divergence(made_run([*errors, "fp16"], error=(errors | {"fp16": 1e-6}).__getitem__))
    found = boxes(plot)
    assert len(found) == len({name[0] for name in errors}) + 1
    for one, other in combinations(found, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] + 0.1 or other[3] <= one[1] + 0.1
        assert apart, (one, other)
    for left, top, right, bottom in found:
        assert min(left, top) >= 0
        assert right <= plot.width
        assert bottom <= plot.height


@pytest.mark.parametrize("count", [4, 12, 34])
def test_labels_cover_no_line_between_points(count: int) -> None:
    errors = {name: 4.0 ** -(index % 7 + 1) for index, name in enumerate(MANY[:count])}
    plot = divergence(made_run(errors, error=errors.__getitem__))
    pieces = [piece for line in plot.lines if "curve" in line.cls for piece in pairwise(line.points)]
    assert pieces
    for (x, y), (other_x, other_y) in pieces:
        for step in range(201):
            at_x, at_y = x + (other_x - x) * step / 200, y + (other_y - y) * step / 200
            covering = [box for box in boxes(plot) if box[0] < at_x < box[2] and box[1] < at_y < box[3]]
            assert covering == []


def test_more_bits_are_further_right_and_less_error_lower() -> None:
    plot = divergence(made_run(["turboquant-mse@2", "turboquant-mse@4"]))
    (curve,) = (line for line in plot.lines if "curve" in line.cls)
    (left, high), (right, low) = curve.points
    assert left < right
    assert high < low
    assert [marker.title for marker in plot.markers] == [
        "turboquant-mse@2: 2.250 effective bits, 0.0442 (0.0398 to 0.0486)",
        "turboquant-mse@4: 4.250 effective bits, 0.00276 (0.00249 to 0.00304)",
    ]


def test_ticks_are_powers_of_ten_at_equal_distances() -> None:
    plot = divergence(made_run(["turboquant-mse@2", "turboquant-mse@8"]))
    ticks = {tick.label: tick.at for tick in plot.y_ticks}
    steps = [ticks[one] - ticks[other] for one, other in (("0.001", "0.01"), ("0.0001", "0.001"))]
    assert steps[0] == pytest.approx(steps[1])


def test_the_control_and_floors_are_lines_of_their_own() -> None:
    plot = divergence(made_run())
    assert sum("control" in line.cls and "curve" in line.cls for line in plot.lines) == 1
    assert "affine (control)" in [label.text for label in plot.labels]
    floors = [line for line in plot.lines if line.cls == "floor"]
    assert len(floors) == 1
    assert any(label.text.startswith("fp16: ") for label in plot.labels)


def test_a_floor_far_below_is_told_in_words() -> None:
    run = made_run(["turboquant-mse@4"])
    run.measures["perplexity"].baseline["kl_mean_rechunked"] = Metric(value=3.9e-12, unit="nats")
    plot = divergence(run)
    assert "Below the picture: uncompressed, re-chunked, 3.90e-12." in plot.notes
    assert not any(line.cls == "floor" for line in plot.lines)


def test_values_that_have_no_place_are_told_in_words() -> None:
    errors = {"turboquant-mse@4": 0.1, "affine@4": math.inf, "qjl@4": 0.0}
    plot = divergence(made_run(errors, error=errors.__getitem__))
    assert "affine@4: infinite, at the edge." in plot.notes
    assert "qjl@4 is exact: 0, at the lower edge." in plot.notes
    assert len(plot.markers) == 3


def test_there_is_no_picture_of_nothing() -> None:
    for run in (made_run(measures=["memory"]), made_run(error=lambda codec: math.nan), made_run(["identity", "fp16"])):
        assert divergence_picture(run, compared(run)) is None
        assert distortion_pictures(run, compared(run)) == []


def test_keys_and_values_have_pictures_with_bound_and_theory() -> None:
    run = made_run()
    keys, values = distortion_pictures(run, compared(run))
    assert keys.title.startswith("Keys")
    for plot in (keys, values):
        assert any("theory" in line.cls for line in plot.lines)
        (bound,) = (line for line in plot.lines if line.cls == "floor")
        assert bound.points[0][0] < bound.points[-1][0]
        assert "bound 4^-b" in [label.text for label in plot.labels]


def test_the_bound_goes_through_four_to_the_minus_bits() -> None:
    run = made_run(["turboquant-mse@2", "turboquant-mse@4"], control=None, spread=None)  # their error is 4^-bits
    plot = distortion_pictures(run, compared(run))[0]
    curve = next(line for line in plot.lines if "curve" in line.cls)
    bound = next(line for line in plot.lines if line.cls == "floor")

    def slope(points: list[tuple[float, float]]) -> float:
        return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])

    assert slope(bound.points) == pytest.approx(slope(curve.points))
    (x, y), (first_x, first_y) = curve.points[0], bound.points[0]
    assert first_y + slope(bound.points) * (x - first_x) == pytest.approx(y)


@pytest.mark.parametrize("shape", SHAPES)
def test_markers_are_closed_and_around_their_point(shape: str) -> None:
    path = marker_path(shape, 100, 50)
    assert path.startswith("M")
    assert path.endswith("z")
