from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cytopave.engine.cellpose_fast import flow_error
from cytopave.engine.cellpose_fast.dynamics import follow, meet
from cytopave.engine.cellpose_fast.objects import Objects


def disks(shape: tuple[int, int], *places: tuple[int, int, int]) -> np.ndarray:
    """Labels of disks ``(y, x, radius)``; later ones get what is left."""
    y, x = np.indices(shape)
    labels = np.zeros(shape, np.int64)
    for number, (cy, cx, radius) in enumerate(places, 1):
        labels[((y - cy) ** 2 + (x - cx) ** 2 <= radius**2) & (labels == 0)] = number
    return labels


def flows_to_centres(labels: np.ndarray, *places: tuple[int, int, int]) -> torch.Tensor:
    """Unit flows of each pixel towards the centre of its disk."""
    y, x = np.indices(labels.shape)
    flows = np.zeros((2, *labels.shape), np.float32)
    for number, (cy, cx, _) in enumerate(places, 1):
        away = np.stack([cy - y, cx - x]) / np.maximum(1, np.hypot(cy - y, cx - x))
        flows = np.where(labels == number, away, flows)
    return torch.from_numpy(flows.astype(np.float32))


def pixels_of(labels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(labels).flatten().nonzero().squeeze(1)


def segmented(labels: np.ndarray, flows: torch.Tensor, steps: int = 200) -> np.ndarray:
    pixels = pixels_of(labels)
    numbers, _ = meet(follow(flows, pixels, steps), labels.shape)
    out = np.zeros(labels.size, np.int64)
    out[pixels.numpy()] = numbers.numpy()
    return out.reshape(labels.shape)


def listed(labels: np.ndarray) -> Objects:
    pixels = pixels_of(labels)
    ids = torch.from_numpy(labels).flatten()[pixels] - 1
    return Objects.of(pixels, ids, int(labels.max()), labels.shape)


def test_pixels_that_meet_are_one_object() -> None:
    places = ((20, 20, 12), (20, 43, 11), (55, 30, 15))
    labels = disks((80, 70), *places)
    found = segmented(labels, flows_to_centres(labels, *places))
    for number in (1, 2, 3):
        assert len(np.unique(found[labels == number])) == 1
    assert len(np.unique(found[labels > 0])) == 3
    assert (found[labels == 0] == 0).all()


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 2**32 - 1))
def test_where_an_object_lies_changes_no_bit(dy: int, dx: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    labels = disks((30, 34), (14, 16, 11))
    flows = torch.randn((2, 30, 34), generator=random) * torch.from_numpy(labels > 0)
    moved = np.pad(labels, ((dy, 7), (dx, 3)))
    moved_flows = torch.nn.functional.pad(flows, (dx, 3, dy, 7))
    first, second = segmented(labels, flows, 25), segmented(moved, moved_flows, 25)
    np.testing.assert_array_equal(second[dy : dy + 30, dx : dx + 34], first)


def test_pixels_stop_at_the_border() -> None:
    flows = torch.full((2, 6, 9), 1.7)
    corner = follow(flows, torch.arange(54), 20)
    assert set(corner.tolist()) == {53}
    assert set(follow(-flows, torch.arange(54), 20).tolist()) == {0}


def test_a_seed_needs_more_than_ten_pixels() -> None:
    ends = torch.tensor([50] * 10 + [210] * 11)
    numbers, count = meet(ends, (20, 20))
    assert count == 1
    assert numbers.tolist() == [0] * 10 + [1] * 11


def test_of_equal_seeds_the_later_one_takes_what_both_reach() -> None:
    row = 10 * 40
    # three pixels each on the places between two seeds, seven apart
    ends = [row + 10] * 12 + [row + 17] * 12 + [row + x for x in range(11, 17) for _ in range(3)]
    numbers, count = meet(torch.tensor(ends), (20, 40))
    assert count == 2
    shared = dict(zip(ends[24::3], numbers[24::3].tolist(), strict=True))
    # each reaches five steps: 11 belongs to the first alone, 12 to 15 to both
    assert [shared[row + x] for x in range(11, 17)] == [1, 2, 2, 2, 2, 2]


def test_nothing_comes_of_nothing() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    ends = follow(torch.zeros(2, 5, 5), none, 10)
    numbers, count = meet(ends, (5, 5))
    assert (len(numbers), count) == (0, 0)
    objects = Objects.of(none, none, 0, (5, 5))
    assert flow_error.flow_errors(torch.zeros(2, 5, 5), objects).tolist() == []
    assert not objects.image().any()
    assert objects.hollow().tolist() == []


def test_flows_of_the_objects_own_shape_have_no_error() -> None:
    dynamics_of_cellpose = pytest.importorskip("cellpose.dynamics")
    labels = disks((90, 90), (20, 22, 14), (60, 30, 17), (40, 70, 6))
    true, _ = dynamics_of_cellpose.masks_to_flows_gpu(labels)
    flows = torch.from_numpy(true.astype(np.float32))
    assert flow_error.flow_errors(flows, listed(labels)).max() < 5e-3
    assert flow_error.flow_errors(-flows, listed(labels)).min() > 3.5


def test_errors_are_cellposes_where_objects_do_not_touch() -> None:
    dynamics_of_cellpose = pytest.importorskip("cellpose.dynamics")
    labels = disks((90, 90), (20, 22, 14), (60, 30, 17), (40, 70, 6))
    labels[70:74, 50:85] = 4
    noisy = np.random.default_rng(0).normal(0, 1, (2, 90, 90)).astype(np.float32)
    expected, _ = dynamics_of_cellpose.flow_error(labels, 5 * noisy)
    got = flow_error.flow_errors(torch.from_numpy(noisy), listed(labels))
    np.testing.assert_allclose(got.numpy(), expected, rtol=0.02)


def test_an_objects_error_is_its_own() -> None:
    labels = disks((60, 80), (30, 25, 14), (30, 50, 14))
    flows = torch.from_numpy(np.random.default_rng(1).normal(0, 1, (2, 60, 80)).astype("f4"))
    alone = np.where(labels == 1, 1, 0)
    both = flow_error.flow_errors(flows, listed(labels))
    assert flow_error.flow_errors(flows, listed(alone)).tolist() == [both[0]]
    shifted = np.pad(alone, ((13, 0), (5, 0)))
    there = flow_error.flow_errors(torch.nn.functional.pad(flows, (5, 0, 13, 0)), listed(shifted))
    assert there.tolist() == [both[0]]


@pytest.mark.parametrize("at_once", [1, 40, 200])
def test_errors_are_the_same_for_objects_in_groups(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = np.zeros((40, 40), np.int64)
    for number, (y, x, side) in enumerate([(2, 2, 9), (2, 20, 4), (15, 3, 20), (20, 30, 6)], 1):
        labels[y : y + side, x : x + side] = number
    flows = torch.randn((2, 40, 40), generator=torch.Generator().manual_seed(0))
    together = flow_error.flow_errors(flows, listed(labels))
    monkeypatch.setattr(flow_error, "AT_ONCE", at_once)
    assert torch.equal(flow_error.flow_errors(flows, listed(labels)), together)
