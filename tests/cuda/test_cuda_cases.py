"""Every case of every operation on the GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest
from on_cuda import cuda, no_back_end_named  # noqa: F401  # fixtures for every test here

from tqcli.kernels.checker.device import OnDevice
from tqcli.kernels.checker.device_worker import in_processes, jobs_for
from tqcli.kernels.checker.operations import cases_of
from tqcli.kernels.runtime.registry import operations


@pytest.fixture(scope="session")
def results(cuda: None) -> dict[str, list[OnDevice]]:  # noqa: F811
    """By operation; several processes compile."""
    found = defaultdict(list)
    for result in in_processes(cases_of(None), None, "cuda", jobs_for("cuda"), repeats=1):
        found[result.operation].append(result)
    return found


@pytest.mark.parametrize("operation", operations())
def test_every_case_agrees_with_its_reference(
    operation: str, results: dict[str, list[OnDevice]], record_property: Callable[[str, object], None]
) -> None:
    of_operation = results[operation]
    assert of_operation
    assert [(of.title, of.error or of.differs) for of in of_operation if not of.agrees] == []
    unequal, elements = sum(of.unequal for of in of_operation), sum(of.elements for of in of_operation)
    record_property("unequal", unequal)
    print(f"{operation}: {len(of_operation)} cases, {unequal} of {elements} elements unequal within what is allowed")
