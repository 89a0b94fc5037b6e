"""Stacks from the image to the label image: plane by plane, and in three dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import zarr
from networks import BrightPatches
from runs import labels_of, plan_of, run_here
from stacks import blobs
from worlds import same_partition

from cytopave.engine.cellpose_fast.volume import VolumeEvaluator
from cytopave.engine.errors import PlanError
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.planning.budget import Budget
from cytopave.engine.planning.planner import plan_grids
from cytopave.engine.score import average_precision
from cytopave.engine.segmenters import Cellpose, cellpose_placed
from cytopave.engine.segmenters.cellpose_weights import installed
from cytopave.engine.tiling import Grid, Tiling

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np

pytestmark = pytest.mark.skipif(
    installed()[1] != 4, reason="the bundled network runs in Cellpose 4"
)

TINY: dict[str, Any] = {"model": "nuclei-tiny", "device": "cpu", "use_bfloat16": False}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def store(path: Path, pixels: np.ndarray) -> Path:
    array = zarr.create_array(str(path), shape=pixels.shape, chunks=(5, 60, 70), dtype="u2")
    array[:] = pixels
    return path


def test_planes_of_a_known_world_become_its_objects(tmp_path: Path) -> None:
    pixels, truth = blobs((14, 120, 150), radius=11, flat=2.0, seed=4)
    segmenter = Cellpose(**TINY, stitch=True, intensity=((500.0, 9000.0),), min_size=0)
    found = []
    for name, tile in (("one", (120, 150)), ("many", (64, 80))):
        image = store(tmp_path / f"{name}.zarr", pixels)
        plan = run_here(image, segmenter=segmenter, tiling=Tiling(tile=tile, halo=32))
        assert plan.grid.tile == (1, *tile)
        found.append(labels_of(plan.target.url))
    assert truth.max() > 8
    assert average_precision(truth, found[0], 0.5) > 0.8
    assert same_partition(*found)


def test_planes_that_are_stitched_are_tiles_of_their_own(tmp_path: Path) -> None:
    stack, flat = (str(tmp_path / name) for name in ("stack.zarr", "flat.zarr"))
    zarr.create_array(stack, shape=(7, 300, 290), chunks=(7, 64, 64), dtype="u2")
    zarr.create_array(flat, shape=(300, 290), chunks=(64, 64), dtype="u2")
    segmenter = Cellpose(**TINY, stitch=True, intensity=((0, 1),), diameter=20)

    def grid(image: str = stack, **tiling: Any) -> Grid:
        return plan_of(image, segmenter=segmenter, tiling=Tiling(**tiling)).grid

    assert (grid().tile, grid().halo) == ((1, 300, 290), (0, 32, 32))
    for tile in ((128, 128), (1, 128, 128)):
        for halo in (8, (8, 8), (0, 8, 8)):
            found = grid(tile=tile, halo=halo)
            assert (found.tile, found.halo) == ((1, 128, 128), (0, 8, 8))
    with pytest.raises(PlanError, match="a tile of 3 planes was asked for: take one plane"):
        grid(tile=(3, 128, 128), halo=8)
    with pytest.raises(PlanError, match="a halo of 2 planes was asked for: take a halo of 0"):
        grid(tile=(128, 128), halo=(2, 8, 8))
    assert grid(flat, tile=(128, 128)).tile == (128, 128)


def test_tiles_in_three_dimensions_are_wide_where_a_gpu_has_room(tmp_path: Path) -> None:
    image = str(tmp_path / "stack.zarr")
    zarr.create_array(image, shape=(60, 3000, 3000), chunks=(30, 128, 128), dtype="u2")
    segmenter = Cellpose(**TINY | {"device": "cuda"}, do_3D=True, intensity=((0, 1),))

    def tile(gib: int, segmenter: Cellpose = segmenter) -> tuple[int, ...]:
        source = open_image(image)
        resolved = segmenter.resolve(source, channels=())
        room = Budget(gib * 2**30, "the test's figure", on_gpu=True)
        return plan_grids(source, Tiling(halo=(0, 32, 32)), resolved, room, n_channels=1)[0].tile

    assert tile(100) == (60, 1024, 1024)
    assert tile(6) == (60, 512, 512)
    assert tile(100, segmenter.model_copy(update={"path": "stock"})) == (60, 256, 256)


@pytest.fixture
def bright(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cellpose]:
    """Cellpose in three dimensions, with a network that costs nothing in the place of its own."""
    monkeypatch.setattr(
        cellpose_placed, "build", lambda *args, **kwargs: VolumeEvaluator(BrightPatches())
    )
    segmenter = Cellpose(**TINY, do_3D=True, intensity=((500.0, 9000.0),))
    segmenter.release()
    yield segmenter
    segmenter.release()


@pytest.mark.parametrize(
    ("shape", "tile", "halo", "fields"),
    [
        ((20, 150, 140), (20, 64, 48), (0, 24, 24), {}),
        (
            (20, 150, 140),
            (10, 80, 140),
            (10, 24, 24),
            {"anisotropy": 2.0, "flow3D_smooth": (1.0,) * 3},
        ),
        ((270, 44, 40), (64, 44, 40), 24, {}),
    ],
)
def test_tiles_of_a_stack_do_not_show(
    bright: Cellpose,
    tmp_path: Path,
    shape: tuple[int, int, int],
    tile: tuple[int, ...],
    halo: Any,
    fields: dict[str, Any],
) -> None:
    pixels, _ = blobs(shape, flat=fields.get("anisotropy", 1.0), seed=5)
    segmenter = bright.model_copy(update=fields)
    found = []
    for name, size in (("one", shape), ("many", tile)):
        image = store(tmp_path / f"{name}.zarr", pixels)
        plan = run_here(image, segmenter=segmenter, tiling=Tiling(tile=size, halo=halo))
        assert (len(plan.grid) > 1) == (name == "many")
        found.append(labels_of(plan.target.url))
    assert found[0].max() > 8
    assert same_partition(*found)
