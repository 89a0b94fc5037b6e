from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import stores
from runs import blobs, plan_of

from cytopave.engine.segmenters import Threshold
from cytopave.engine.tiling import Tiling
from cytopave.tasks.segment import segment_task

if TYPE_CHECKING:
    from cytopave.engine.planning.plan import Plan


@pytest.fixture
def plan(folder: Path) -> Plan:
    stores.plain_array(folder / "image.zarr", blobs((64, 64)).astype("u1"))
    return plan_of(folder / "image.zarr", segmenter=Threshold(threshold=0), tiling=Tiling())


@pytest.mark.parametrize(
    ("setting", "storage"),
    [
        (None, None),
        ("/shared/results", Path("/shared/results")),
        ("~/results", Path.home() / "results"),
        ("s3-bucket/results", "s3-bucket/results"),
    ],
)
def test_results_go_where_the_site_says(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, setting: str | None, storage: Path | str | None
) -> None:
    if setting is not None:
        monkeypatch.setenv("CYTOPAVE_RESULTS", setting)
    task = segment_task(plan, 0)
    assert task.result_storage == (storage or plan.root / "results")
