"""Plans: tiles by memory, halos by objects, batches by time, digests by content."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from cytopave.engine.boxes import Box
from cytopave.engine.errors import OutputError, PlanError, UserError
from cytopave.engine.merge import Merge
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.planning import planner
from cytopave.engine.planning.budget import Budget
from cytopave.engine.planning.needs import _in_flight
from cytopave.engine.planning.plan import Plan, batch_shape
from cytopave.engine.planning.planner import make_plan
from cytopave.engine.segmenters import Cellpose, Custom, Threshold
from cytopave.engine.tiling import Grid, Tiling

PLENTY = Budget(8 * 2**30, "the test's figure", on_gpu=False)


def _store(path: Path, shape: tuple[int, ...] = (700, 900), seed: int = 0) -> str:
    pixels = np.random.default_rng(seed).integers(0, 1000, shape).astype(np.uint16)
    array = zarr.create_array(
        str(path), shape=shape, chunks=(1,) * (len(shape) - 2) + (128, 128), dtype="u2"
    )
    array[:] = pixels
    return str(path)


def _plan(image: str, **changes: Any) -> Plan:
    request: dict[str, Any] = {
        "segmenter": Threshold(),
        "tiling": Tiling(tile=(256, 256), halo=16),
        "merge": Merge(),
        "budget": PLENTY,
        "workers": 2,
        "batch_seconds": 20.0,
        "name": "cells",
    }
    return make_plan(image, **{**request, **changes})


def test_a_plan_survives_its_file_and_leaves_nothing_before(tmp_path: Path) -> None:
    image = _store(tmp_path / "a.zarr")
    before = sorted(tmp_path.rglob("*"))
    plan = _plan(image)
    assert sorted(tmp_path.rglob("*")) == before
    assert Plan.load(plan.save()) == plan
    assert isinstance(plan.segmenter, Threshold)
    assert plan.segmenter.threshold is not None


def test_what_follows_from_the_device_is_settled_once_workers_were_seen(tmp_path: Path) -> None:
    """Labels in 16 and in 32 bits differ: which it is must not depend on the worker."""
    image = _store(tmp_path / "a.zarr")
    for on_gpu, fixed in ((True, ("cuda", True)), (False, ("cpu", False)), (None, ("auto", None))):
        budget = Budget(64 * 2**30, "", on_gpu=on_gpu)
        cellpose = _plan(image, segmenter=Cellpose(model="nuclei-tiny"), budget=budget).segmenter
        assert isinstance(cellpose, Cellpose)
        assert (cellpose.device, cellpose.use_bfloat16) == fixed


def test_the_digest_names_what_tiles_depend_on(tmp_path: Path) -> None:
    image = _store(tmp_path / "a.zarr")
    same = [_plan(image), _plan(image, name="other"), _plan(image, merge=Merge(iou=0.7), workers=5)]
    assert len({p.digest for p in same}) == 1
    other = [
        _plan(image, tiling=Tiling(tile=(256, 256), halo=17)),
        _plan(image, segmenter=Threshold(threshold=3)),
        _plan(_store(tmp_path / "b.zarr", seed=1)),
    ]
    assert len({p.digest for p in [same[0], *other]}) == 4
    zarr.open_array(image)[0, 0] = 7
    assert _plan(image).digest != same[0].digest


def test_automatic_tiles_shrink_to_the_memory_and_align_to_chunks(tmp_path: Path) -> None:
    image = _store(tmp_path / "a.zarr", (5000, 5000))
    large = _plan(image, tiling=Tiling(halo=32)).grid
    assert large.tile == (2048, 2048)
    small = _plan(image, tiling=Tiling(halo=32), budget=Budget(4 * 2**20, "", on_gpu=False))
    assert small.grid.tile == (256, 256)
    assert small.memory.need <= 4 * 2**20


def test_finished_tiles_decide_on_automatic_ones(tmp_path: Path) -> None:
    """What memory is free when a run starts again differs; its tiles are still the same."""
    image = _store(tmp_path / "a.zarr", (1500, 1500))
    little = Budget(4 * 2**20, "", on_gpu=False)
    auto = Tiling(halo=32)
    first = _plan(image, tiling=auto, budget=little)
    assert first.grid.tile == (256, 256)
    assert _plan(image, tiling=auto).grid.tile == (1500, 1500)
    tile = first.grid[3]
    first.scratch.commit(first.grid, tile, np.zeros(tile.window.shape, np.uint32))
    again = _plan(image, tiling=auto)
    assert (again.grid, again.digest, again.root) == (first.grid, first.digest, first.root)
    # What does not fit any more is begun anew.
    less = _plan(image, tiling=auto, budget=Budget(2**20, "", on_gpu=False))
    assert less.grid.tile == (128, 128)
    # Other tiles are other work.
    assert _plan(image, tiling=auto, segmenter=Threshold(threshold=1)).grid.tile == (1500, 1500)


def test_what_cannot_fit_is_refused_with_the_figures(tmp_path: Path) -> None:
    image = _store(tmp_path / "a.zarr", (5000, 5000))
    tiny = Budget(2**20, "the test's figure", on_gpu=False)
    with pytest.raises(PlanError, match=r"needs about .* GiB.*the test's figure"):
        _plan(image, budget=tiny, tiling=Tiling(tile=(4096, 4096), halo=0))
    with pytest.raises(PlanError, match="not even a tile of 64"):
        _plan(image, budget=Budget(1000, "", on_gpu=False), tiling=Tiling(halo=0))
    with pytest.raises(PlanError, match="a halo of 300 pixels does not fit a tile of 256"):
        _plan(image, tiling=Tiling(tile=(256, 256), halo=300))
    with pytest.raises(PlanError, match="3 lengths"):
        _plan(image, tiling=Tiling(tile=(8, 256, 256), halo=0))


def test_halos_come_from_the_diameter(tmp_path: Path) -> None:
    image = _store(tmp_path / "a.zarr")
    function = Custom(function="worlds:connected", diameter=30)
    assert _plan(image, segmenter=function, tiling=Tiling(tile=(256, 256))).grid.halo == (48, 48)
    assert _plan(image, tiling=Tiling(tile=(256, 256))).grid.halo == (64, 64)
    assert _plan(image, tiling=Tiling(tile=(32, 32))).grid.halo == (32, 32)


def test_two_numbers_for_a_stack_mean_all_planes(tmp_path: Path) -> None:
    image = _store(tmp_path / "a.zarr", (7, 300, 300))
    grid = _plan(image, tiling=Tiling(tile=(128, 128), halo=(8, 8))).grid
    assert (grid.tile, grid.halo) == ((7, 128, 128), (0, 8, 8))


def test_a_remote_store_needs_a_scratch_folder(tmp_path: Path) -> None:
    image = _store(tmp_path / "a.zarr")
    with pytest.raises(OutputError, match="name a scratch folder"):
        _plan(image, output="memory://labels.zarr")
    plan = _plan(image, output="memory://labels.zarr", scratch=tmp_path / "s")
    assert plan.root.parent == tmp_path / "s"


def test_an_unknown_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no_such_module"):
        _plan(_store(tmp_path / "a.zarr"), segmenter=Custom(function="no_such_module:f"))


@given(
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.floats(0.1, 1e4),
    st.integers(1, 16),
)
def test_batches_are_compact_and_keep_every_worker_busy(
    counts: tuple[int, int], tiles: float, workers: int
) -> None:
    grid = Grid(tuple(10 * c for c in counts), (10, 10), (0, 0))
    shape = batch_shape(grid, tiles=tiles, workers=workers)
    size = math.prod(shape)
    assert size <= max(1, tiles, len(grid) / (3 * workers))
    for axis, (s, count) in enumerate(zip(shape, counts, strict=True)):
        other, others = shape[1 - axis], counts[1 - axis]
        assert 1 <= s <= count
        assert s <= 2 * other or other == others, "compact, as far as the grid is"
        grown = size // s * (s + 1)
        room = s < count and (s + 1 <= 2 * other or other == others)
        assert not room or grown > max(1, min(tiles, len(grid) / (3 * workers)))


def test_a_gpu_gets_few_tasks_where_each_is_short() -> None:
    grid = Grid((8192, 8192), (2048, 2048), (64, 64))
    assert batch_shape(grid, tiles=80, workers=1, least=20) == (4, 4)
    assert sorted(batch_shape(grid, tiles=80, workers=2, least=20)) == [2, 4]
    assert batch_shape(grid, tiles=4, workers=1, least=1) == (2, 2)
    large = Grid((2**16, 2**16), (2048, 2048), (64, 64))
    assert math.prod(batch_shape(large, tiles=80, workers=2, least=20)) > 70


@pytest.mark.parametrize(
    ("budget", "in_flight", "in_tiles"),
    [(100, 6, True), (40, 4, True), (30, 3, True), (29, 5, False), (10, 2, False), (1, 1, False)],
)
def test_tiles_are_measured_in_hand_where_memory_suffices(
    budget: int, in_flight: int, in_tiles: bool
) -> None:
    """A tile of 5 that takes 5 more: rather than with fewer than three, it is done without."""
    assert _in_flight(budget, 5, 5) == (in_flight, in_tiles)
    assert _in_flight(budget, 5, None) == (max(1, min(6, budget // 5)), False)


def test_a_cpu_that_runs_a_network_needs_the_memory_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = _store(tmp_path / "a.zarr", (600, 1100))
    segmenter = Cellpose(model="nuclei-tiny", device="cpu", intensity=((0, 100),))
    asked = {"segmenter": segmenter, "tiling": Tiling(halo=32)}
    grid = _plan(image, **asked).grid
    assert grid.tile == (600, 1100)
    resolved = segmenter.resolve(open_image(image), channels=())
    window, region = grid.shape, resolved.region(Box.of(grid.shape), grid.shape)
    computed = resolved.host_bytes(window, 2, 1)
    held = region.size * (2 + 4) + math.prod(window) * (8 + 4)
    tight = Budget(computed + held - 1, "the test's figure", on_gpu=False)
    assert _plan(image, **asked, budget=tight).grid.tile == (600, 1024)
    for more, in_flight in ((2 * held, 2), (held, 1), (0, 1)):
        room = Budget(computed + more, "", on_gpu=False)
        monkeypatch.setattr(planner, "host_budget", lambda _, room=room: room)
        assert _plan(image, **asked).in_flight == in_flight


@pytest.mark.parametrize("chunk", [1, 3])
def test_a_plan_counts_what_is_kept_to_be_measured(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = str(tmp_path / "a.zarr")
    zarr.create_array(image, shape=(3, 700, 900), chunks=(chunk, 128, 128), dtype="u2")
    window, core = 288 * 288, 256 * 256
    need = window * (2 + 4 + 8 + 4)  # pixels of one channel, as read and as given; labels twice
    # The cores of all channels; all as they are read, if a chunk holds them all.
    more = 3 * 2 * (core + (window if chunk == 3 else 0))
    found = []
    for room in (3 * (need + more), 3 * (need + more) - 1):
        monkeypatch.setattr(planner, "host_budget", lambda _, size=room: Budget(size, "", False))
        plan = _plan(image, axes="cyx", channels=[1], measure=True)
        found.append((plan.in_flight, plan.measured, plan.measured_in_tiles))
    alone = (3 * (need + more) - 1) // need
    assert found == [(3, (0, 1, 2), True), (alone, (0, 1, 2), False)]
    assert _plan(image, axes="cyx", channels=[1]).measured is None
