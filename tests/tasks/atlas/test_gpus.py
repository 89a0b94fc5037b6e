"""The memory of all GPUs that the workers have, as a plan counts it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("scanpy")

from atlas_steps import threads

from cytopave.engine.gpu.vram import Gpu, probe_gpu
from cytopave.tasks.atlas import plan

if TYPE_CHECKING:
    from collections.abc import Callable


def card(uuid: str) -> Gpu:
    return probe_gpu(assumed_gb=8).model_copy(update={"visible": bool(uuid), "uuid": uuid})


def own(dask_worker: Any) -> Gpu:
    return card(f"GPU-{dask_worker.name}")


def shared() -> Gpu:
    return card("GPU-0")


def of_one(dask_worker: Any) -> Gpu:
    return card("" if dask_worker.name else "GPU-0")


@pytest.mark.parametrize(("found", "cards"), [(own, 2), (shared, 1), (of_one, 0)])
def test_each_card_counts_once_and_every_worker_needs_one(
    monkeypatch: pytest.MonkeyPatch, found: Callable[..., Gpu], cards: int
) -> None:
    monkeypatch.setattr(plan, "probe_gpu", found)
    with threads(2) as client:
        assert plan._memory_of_gpus(client) == cards * 8 * 2**30
