"""Threads within a task change nothing but the time that it takes."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stores
from runs import blobs, labels_of, merge_here, plan_of

from cytopave.engine.errors import CorruptError
from cytopave.engine.merge import stages
from cytopave.engine.omezarr import pyramid
from cytopave.engine.scratch.archive import Archive
from cytopave.engine.segment import segment_tiles
from cytopave.engine.segmenters import Threshold
from cytopave.engine.tiling import Tiling

if TYPE_CHECKING:
    from pathlib import Path

    from cytopave.engine.planning.plan import Plan


def segmented(folder: Path) -> Plan:
    truth = blobs((1600, 1500))
    image = stores.ome_image(folder / "image.zarr", truth, axes="yx", dtype="uint8")
    plan = plan_of(
        image, segmenter=Threshold(threshold=0.5), tiling=Tiling(tile=(256, 256), halo=32)
    )
    for batch in plan.batches:
        segment_tiles(plan, batch)
    return plan


def test_threads_read_and_write_as_one_thread_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyramid, "GROUP_PIXELS", 1 << 18)
    plans = [segmented(tmp_path / name) for name in ("one", "four")]
    assert len(plans[0].target.blocks()) >= 8
    painted: list[Counter[Any]] = []
    read = Archive.read

    def counted(archive: Archive, *names: str) -> list[np.ndarray]:
        members = [n for n in names if n == "core" or n.startswith("zone")]
        painted[-1].update(itertools.product([archive.path.name], members))
        return read(archive, *names)

    monkeypatch.setattr(Archive, "read", counted)
    traffic = stores.Traffic(monkeypatch)
    for plan, threads in zip(plans, (1, 4), strict=True):
        painted.append(Counter())
        merge_here(plan, tiles=99, blocks=99, threads=threads)
    written = traffic.chunks(traffic.writes)
    assert {n for path, n in written.items() if "/labels/" in path} == {1}
    assert painted[0] == painted[1]
    monkeypatch.undo()
    one, four = (labels_of(tmp_path / name / "image.zarr") for name in ("one", "four"))
    assert one.max() > 1000
    np.testing.assert_array_equal(one, four)
    blocks = [[tuple(plan.target.blocks())] for plan in plans]
    reports = [stages.count_seams(p, b) for p, b in zip(plans, blocks, strict=True)]
    assert reports[0] == reports[1]
    assert reports[0].axes[0].seams.met > 50


def test_a_damaged_tile_is_reported_from_any_thread(tmp_path: Path) -> None:
    plan = segmented(tmp_path)
    plan.scratch.tile_path(7).write_bytes(b"nothing")
    with pytest.raises(CorruptError, match="000000007"):
        stages.scan_tiles(plan, range(len(plan.grid)), threads=3)


@pytest.mark.parametrize(
    ("cores", "neighbours", "threads"),
    [(2, 2, 1), (2, 1, 2), (16, 1, 4), (16, 16, 1), (1, 4, 1), (128, 8, 4), (12, 4, 3)],
)
def test_workers_share_the_cores(cores: int, neighbours: int, threads: int) -> None:
    assert stages.threads_for(cores, neighbours) == threads
