from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import disks, same_partition

from cytopave.engine.cellpose_fast import dynamics3d
from cytopave.engine.cellpose_fast.dynamics3d import follow, meet
from cytopave.engine.cellpose_fast.objects import Objects


def flows_to_centres(labels: np.ndarray) -> np.ndarray:
    """Unit flows of each voxel towards the mean place of its object, ``(3, Z, Y, X)``."""
    place = np.indices(labels.shape).reshape(3, -1)
    ids = labels.ravel().astype(np.int64)
    area = np.maximum(1, np.bincount(ids))
    centre = np.stack([np.bincount(ids, p) / area for p in place])
    away = centre[:, ids] - place
    away /= np.maximum(1, np.sqrt((away**2).sum(0)))
    return np.where(labels > 0, away.reshape(3, *labels.shape), 0).astype(np.float32)


def listed(flows: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(flows.reshape(3, -1).T))


def foreground(labels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy((labels > 0).ravel()).nonzero().squeeze(1)


def segmented(labels: np.ndarray, flows: np.ndarray, steps: int = 60) -> np.ndarray:
    voxels = foreground(labels)
    numbers, _ = meet(follow(listed(flows), labels.shape, voxels, steps), labels.shape)
    out = np.zeros(labels.size, np.int64)
    out[voxels.numpy()] = numbers.numpy()
    return out.reshape(labels.shape)


def test_voxels_that_meet_are_one_object() -> None:
    labels = disks((30, 50, 60), radius=8, pitch=17)
    assert len(np.unique(labels)) > 10
    assert same_partition(labels, segmented(labels, flows_to_centres(labels)))


@settings(max_examples=20)
@given(st.tuples(*[st.integers(0, 200)] * 3), st.integers(0, 2**32 - 1))
def test_where_an_object_lies_changes_no_bit(by: tuple[int, int, int], seed: int) -> None:
    # clear of the border, at which voxels stop
    labels = np.pad(disks((12, 14, 16), radius=6, pitch=14), 6)
    flows = np.random.default_rng(seed).normal(0, 1, (3, *labels.shape)).astype("f4") * (labels > 0)
    by = (by[0] % 9, by[1] % 40, by[2])
    wide = [(0, 0), *((b, 3) for b in by)]
    there = segmented(np.pad(labels, wide[1:]), np.pad(flows, wide), 25)
    inside = tuple(slice(b, b + n) for b, n in zip(by, labels.shape, strict=True))
    np.testing.assert_array_equal(there[inside], segmented(labels, flows, 25))


def test_voxels_stop_at_the_border() -> None:
    shape = (4, 6, 9)
    flows = torch.full((4 * 6 * 9, 3), 1.7)
    every = torch.arange(len(flows))
    assert set(follow(flows, shape, every, 20).tolist()) == {len(flows) - 1}
    assert set(follow(-flows, shape, every, 20).tolist()) == {0}


def test_a_place_between_voxels_takes_what_is_around_it() -> None:
    shape = (3, 3, 3)
    random = np.random.default_rng(0).uniform(-0.4, 0.4, (3, *shape)).astype("f4")
    flows = listed(random)
    moved = dynamics3d._displace(flows, shape, torch.tensor([[1], [1], [1]]), 2)[:, 0].numpy()
    first = random[:, 1, 1, 1]
    low = np.floor(1 + first).astype(int)
    share = 1 + first - low
    second = np.zeros(3)
    for corner in np.ndindex(2, 2, 2):
        weight = np.prod(np.where(corner, share, 1 - share))
        second += weight * random[:, *(low + corner)]
    np.testing.assert_allclose(moved, first + second, rtol=1e-5)


def test_neither_blocks_of_voxels_nor_of_seeds_change_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels = disks((14, 60, 60), radius=5, pitch=11)
    flows = flows_to_centres(labels)
    before = segmented(labels, flows, 30)
    monkeypatch.setattr(dynamics3d, "_MOVED_AT_ONCE", {"cpu": 1001})
    monkeypatch.setattr(dynamics3d, "_COMPARED_AT_ONCE", 7)
    monkeypatch.setattr(dynamics3d, "_GROWN_AT_ONCE", 3)
    np.testing.assert_array_equal(segmented(labels, flows, 30), before)


def test_a_seed_needs_more_than_ten_voxels() -> None:
    ends = torch.tensor([50] * 10 + [700] * 11)
    numbers, count = meet(ends, (9, 9, 9))
    assert count == 1
    assert numbers.tolist() == [0] * 10 + [1] * 11


def test_of_equal_seeds_the_later_one_takes_what_both_reach() -> None:
    row = (2 * 5 + 2) * 40
    # three voxels each on the places between two seeds, seven apart
    ends = [row + 10] * 12 + [row + 17] * 12 + [row + x for x in range(11, 17) for _ in range(3)]
    numbers, count = meet(torch.tensor(ends), (5, 5, 40))
    assert count == 2
    shared = dict(zip(ends[24::3], numbers[24::3].tolist(), strict=True))
    assert [shared[row + x] for x in range(11, 17)] == [1, 2, 2, 2, 2, 2]


def test_nothing_comes_of_nothing() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    ends = follow(torch.zeros(60, 3), (3, 4, 5), none, 10)
    numbers, count = meet(ends, (3, 4, 5))
    assert (len(numbers), count) == (0, 0)


def test_from_cellposes_own_steps_on_objects_are_cellposes() -> None:
    dynamics = pytest.importorskip("cellpose.dynamics")
    labels = disks((25, 60, 70), radius=9, pitch=19)
    random = np.random.default_rng(0)
    flows = flows_to_centres(labels) + random.normal(0, 0.7, (3, *labels.shape)).astype("f4")
    flows *= labels > 0
    voxels = foreground(labels)
    inside = np.nonzero(labels)
    ended = dynamics.follow_flows(flows, inside, niter=100).int()
    expected = dynamics.get_masks_torch(ended.clone(), inside, labels.shape, max_size_fraction=1)
    assert expected.max() > 10
    z, y, x = ended.long()
    numbers, count = meet((z * labels.shape[1] + y) * labels.shape[2] + x, labels.shape)
    found = Objects.numbered(voxels, numbers, count, 0, labels.shape).image().numpy()
    assert same_partition(expected.astype(np.int64), found)
