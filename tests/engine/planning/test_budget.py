from __future__ import annotations

import psutil
import pytest

from cytopave.engine.planning.budget import (
    Room,
    distant_budget,
    host_budget,
    local_budget,
    rooms_budget,
)
from cytopave.engine.segmenters import Cellpose, Custom, Threshold

GIB = 2**30


def test_workers_of_one_host_share_its_memory() -> None:
    rooms = [Room("a", 40 * GIB, None), Room("a", 40 * GIB, None), Room("b", 30 * GIB, None)]
    budget = rooms_budget(rooms)
    assert budget.size == 10 * GIB
    assert not budget.on_gpu
    assert budget.source == "half of the 20.0 GiB of free memory that each of 3 workers has"


def test_a_worker_gets_no_more_than_dask_lets_it_have() -> None:
    """It would be ended for taking more."""
    assert rooms_budget([Room("a", 40 * GIB, 8 * GIB)]).size == 4 * GIB
    assert rooms_budget([Room("a", 40 * GIB, 8 * GIB, threads=4)]).size == 1 * GIB
    assert rooms_budget([Room("a", 4 * GIB, 8 * GIB)]).size == 2 * GIB
    assert rooms_budget([Room("a", 4 * GIB, 0)]).size == 2 * GIB  # Dask's word for no limit


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.usefixtures("no_gpu")
def test_a_host_without_a_gpu_plans_for_the_one_that_it_is_told_of() -> None:
    told = local_budget(Cellpose(), workers=1, assumed_gb=24)
    assert told.on_gpu
    assert told.size == int(24 * GIB * 0.8)
    assert "24 GiB are assumed" in told.source
    assert not local_budget(Cellpose(), workers=1).on_gpu
    for other in (Cellpose(device="cpu"), Threshold()):
        assert not local_budget(other, workers=1, assumed_gb=24).on_gpu


@pytest.mark.usefixtures("no_gpu")
def test_workers_elsewhere() -> None:
    known = distant_budget(Cellpose(), gpu=True, assumed_gb=None)
    assert known.on_gpu
    assert known.size == int(8 * GIB * 0.8)
    told = distant_budget(Custom(function="a:b", gpu=True), gpu=None, assumed_gb=24)
    assert told.size == int(24 * GIB * 0.8)
    for gpu, assumed in ((None, None), (False, 24.0)):
        budget = distant_budget(Cellpose(), gpu=gpu, assumed_gb=assumed)
        assert not budget.on_gpu
        assert "the workers are asked when the run starts" in budget.source
        assert budget.size <= psutil.virtual_memory().total / 2
    assert not distant_budget(Threshold(), gpu=True, assumed_gb=24).on_gpu


def test_this_host() -> None:
    one, two = host_budget(1), host_budget(2)
    assert 0 < two.size < one.size
