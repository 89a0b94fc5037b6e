"""Planes segmented one by one, and their sections joined along Z."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiled import tiled
from worlds import confluent, connected, dense, disks, fused, perfect, same_partition, split

from cytopave.engine.segmenters.planes import stitched

WORLDS = {
    "apart": disks((24, 90, 100), radius=9, pitch=26, seed=1),
    "touching": disks((24, 90, 100), radius=10, pitch=20, seed=2),
    "confluent": confluent((20, 80, 90), pitch=24),
}


def by_planes(window: np.ndarray) -> np.ndarray:
    """What a method for planes says about a window that is one."""
    assert len(window) == 1
    return perfect(window[0])[np.newaxis]


def sections(world: np.ndarray) -> list[np.ndarray]:
    return [dense(connected(plane.astype(np.uint32))) for plane in world]


@pytest.mark.parametrize("tile", [(1, 90, 100), (1, 40, 35)])
def test_stitched_planes_of_a_known_world_are_its_objects(
    tile: tuple[int, ...], tmp_path: Path
) -> None:
    world = WORLDS["apart"]
    found = tiled(world, by_planes, tmp_path, tile=tile, halo=(0, 12, 12))
    assert len(np.unique(world)) > 10
    assert same_partition(world, found)


@pytest.mark.parametrize("name", ["touching", "confluent"])
def test_tiles_do_not_change_what_is_stitched(name: str, tmp_path: Path) -> None:
    world = WORLDS[name]
    one = tiled(world, by_planes, tmp_path / "one", tile=(1, 90, 100), halo=(0, 0, 0))
    many = tiled(world, by_planes, tmp_path / "many", tile=(1, 30, 37), halo=(0, 16, 16))
    assert same_partition(one, many)
    assert split(world, one) == 0
    # balls that stand on each other look like one where their caps match
    assert fused(world, one) <= (0 if name == "confluent" else 0.2 * len(np.unique(world)))


@pytest.mark.parametrize("name", list(WORLDS))
def test_several_planes_at_once_are_stitched_as_the_merge_does(name: str, tmp_path: Path) -> None:
    world = WORLDS[name]
    merged = tiled(world, by_planes, tmp_path, tile=(1, 90, 100), halo=(0, 0, 0))
    assert same_partition(merged, stitched(sections(world)))


def test_a_section_joins_what_it_lies_on() -> None:
    planes = np.zeros((4, 6, 9), np.int64)
    planes[0, 1:4, 1:4] = 7
    planes[1, 1:4, 2:5] = 3
    planes[1, 0, 7] = 1
    planes[3, 1:4, 2:5] = 2
    found = stitched(planes)
    assert found[0, 2, 2] == found[1, 2, 3]
    assert len(np.unique(found)) == 4, "nothing is joined across an empty plane"
    np.testing.assert_array_equal(found > 0, planes > 0)


def test_one_plane_is_left_as_it_is() -> None:
    plane = np.array([[0, 5], [9, 0]])
    np.testing.assert_array_equal(stitched([plane]), plane[np.newaxis])
    np.testing.assert_array_equal(stitched([plane * 0, plane * 0]), np.zeros((2, 2, 2)))
