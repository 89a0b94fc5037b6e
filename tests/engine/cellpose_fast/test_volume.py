"""Stacks on the fast path: Cellpose's own `eval` of the whole stack, whatever the windows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from networks import Bright, BrightPatches, stock
from stacks import blobs as world
from worlds import same_partition

from cytopave.engine.boxes import Box
from cytopave.engine.cellpose_fast.evaluate import Recipe
from cytopave.engine.cellpose_fast.passes import Volume
from cytopave.engine.cellpose_fast.volume import VolumeEvaluator
from cytopave.engine.score import average_precision
from cytopave.engine.segmenters.cellpose_placed import region
from cytopave.engine.segmenters.place import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

RECIPE = Recipe(1.0, ((500.0, 9000.0),), 0.4, 0.0, 15, 200, Volume())
VOLUMES = [
    (1.0, Volume()),
    (1.0, Volume(anisotropy=2.5)),
    (1.3, Volume(anisotropy=1.7, smooth=(1.0, 0.5, 0.0))),
    (0.6, Volume(smooth=(0.0, 2.0, 1.0))),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def blobs(shape: tuple[int, int, int], **how: Any) -> np.ndarray:
    return world(shape, **how)[0]


def evaluator(**how: int) -> VolumeEvaluator:
    network = BrightPatches()
    network.batch = how.pop("batch", 1)
    return VolumeEvaluator(network, **how)  # type: ignore[arg-type]


def whole(shape: tuple[int, ...], name: str = "stack") -> Place:
    return Place(name, 0, shape, Box.of(shape), Box.of(shape))


def part(window: Box, shape: tuple[int, ...], recipe: Recipe, name: str = "stack") -> Place:
    seen = region(window, shape, rescale=recipe.rescale, volume=recipe.volume)
    return Place(name, 0, shape, seen, window)


@pytest.mark.parametrize(("rescale", "volume"), VOLUMES)
def test_it_is_cellposes_own_eval_of_the_whole_stack(rescale: float, volume: Volume) -> None:
    shape = (20, int(50 / rescale), int(60 / rescale))
    image = blobs(shape, radius=8 / rescale, flat=volume.anisotropy)
    recipe = replace(RECIPE, rescale=rescale, volume=volume)
    ours = evaluator()
    flows = ours.maps(image[None], whole(image.shape), recipe).numpy()
    labels = ours(image[None], whole(image.shape), recipe)
    expected, (_, steps, logits), _ = stock(Bright()).eval(
        image.astype(np.float32),
        z_axis=0,
        channel_axis=None,
        do_3D=True,
        normalize={"lowhigh": list(recipe.intensity[0])},
        diameter=None if rescale == 1 else 30 / rescale,
        anisotropy=volume.anisotropy,
        flow3D_smooth=list(volume.smooth) if any(volume.smooth) else 0,
        max_size_fraction=1.0,
        niter=recipe.steps,
    )
    np.testing.assert_allclose(flows, np.concatenate([steps, logits[None]]), atol=2e-4)
    assert expected.max() > 3
    # Cellpose samples flows up to half a voxel beside a voxel's place: see test_dynamics3d
    assert average_precision(expected, labels, threshold=0.5) == 1
    assert average_precision(expected, labels, threshold=0.75) > 0.85


def test_two_channels_are_evaluated_together() -> None:
    image = np.stack([blobs((12, 40, 50)), blobs((12, 40, 50), seed=1)])
    recipe = replace(RECIPE, intensity=((400, 9000), (300, 12000)))
    flows = evaluator().maps(image, whole(image.shape[1:]), recipe)
    ranges = {"lowhigh": [list(r) for r in recipe.intensity]}
    _, (_, steps, logits), _ = stock(Bright()).eval(
        image.astype(np.float32), z_axis=1, channel_axis=0, do_3D=True, normalize=ranges
    )
    expected = np.concatenate([steps, logits[None]])
    np.testing.assert_allclose(flows.numpy(), expected, atol=2e-4)


SHAPES = [(18, 270, 30), (110, 26, 24), (130, 22, 24), (12, 40, 440)]
"""In each, one axis takes more than one patch."""


@pytest.mark.parametrize(
    ("rescale", "volume", "shape"),
    [(*how, shape) for how, shape in zip(VOLUMES, SHAPES, strict=True)],
)
def test_windows_see_what_the_whole_stack_sees(
    rescale: float, volume: Volume, shape: tuple[int, int, int]
) -> None:
    image = blobs(shape, flat=volume.anisotropy)[None]
    recipe = replace(RECIPE, rescale=rescale, volume=volume)
    everything = evaluator().maps(image, whole(shape), recipe)
    windows = evaluator(batch=7)
    for window in Box.of(shape).blocks((70, 160, 230)):
        place = part(window, shape, recipe)
        flows = windows.maps(image[:, *place.region.slices], place, recipe)
        assert torch.equal(flows, everything[:, *window.slices])
    assert windows.reused > 0, "windows share patches"


def test_a_window_of_a_large_stack_needs_only_a_part_of_it() -> None:
    shape, window = (900, 1000, 1100), Box((400, 500, 600), (420, 540, 660))
    seen = region(window, shape, rescale=1.0, volume=Volume())
    assert max(seen.shape) < 3 * 256
    thin = region(Box((0, 0, 0), (30, 40, 50)), (30, 1000, 1100), rescale=1.0, volume=Volume())
    assert thin.shape[0] == 30
    wider = region(window, shape, rescale=1.0, volume=Volume(smooth=(9.0, 9.0, 9.0)))
    assert wider.size > seen.size


def test_objects_are_the_same_in_every_window_that_holds_them() -> None:
    shape = (24, 110, 100)
    image = blobs(shape, seed=3)[None]
    labels = evaluator()(image, whole(shape), RECIPE)
    assert labels.max() > 15
    inner = Box((0, 15, 10), (24, 95, 90))
    place = part(inner, shape, RECIPE)
    found = evaluator()(image[:, *place.region.slices], place, RECIPE)
    # those of the window that keep clear of where it ends
    cut = np.ones(inner.shape, bool)
    cut[:, 20:-20, 20:-20] = False
    expected = labels[inner.slices]
    inside = np.setdiff1d(np.unique(expected), np.unique(expected[cut]))
    assert len(inside) > 1
    kept = np.isin(expected, inside)
    assert same_partition(np.where(kept, expected, 0), np.where(kept, found, 0))
    assert not np.isin(found[~kept], np.unique(found[kept])).any()


def test_patches_of_another_stack_or_anisotropy_are_not_taken() -> None:
    shape, window = (5, 30, 40), Box((0, 0, 0), (5, 30, 20))
    image = blobs(shape)[None]
    ours = evaluator()

    def evaluate(recipe: Recipe = RECIPE, name: str = "stack") -> tuple[int, int]:
        place = part(window, shape, recipe, name)
        before = ours.evaluated, ours.reused
        ours.maps(image[:, *place.region.slices], place, recipe)
        return ours.evaluated - before[0], ours.reused - before[1]

    assert evaluate() == (5 + 30 + 20, 0)
    assert evaluate() == (0, 55)
    assert evaluate(replace(RECIPE, min_size=0)) == (0, 55)
    assert evaluate(replace(RECIPE, volume=Volume(smooth=(0, 0, 1.0))))[1] == 55
    assert evaluate(name="other") == (55, 0)
    assert evaluate(replace(RECIPE, volume=Volume(anisotropy=1.2))) == (6 + 30 + 20, 0)


def test_only_so_many_bytes_are_kept() -> None:
    shape, window = (5, 30, 40), Box((0, 0, 0), (5, 30, 20))
    each = 3 * 5 * 40 * 4  # what a patch across Y says about the stack
    ours = evaluator(keep_bytes=20 * each)
    place = part(window, shape, RECIPE)
    for _ in range(2):
        ours.maps(blobs(shape)[None, *(place.region.slices)], place, RECIPE)
    assert ours.evaluated == 110
    assert sum(a.untyped_storage().nbytes() for a in ours._kept.values()) <= 20 * each


def test_of_a_whole_stack_nothing_is_kept() -> None:
    ours = evaluator()
    ours.maps(blobs((5, 30, 40))[None], whole((5, 30, 40)), RECIPE)
    assert not ours._kept


@pytest.mark.parametrize("shape", [(2, 1, 1), (2, 1, 40), (3, 2, 5)])
def test_stacks_of_any_size_are_evaluated(shape: tuple[int, int, int]) -> None:
    labels = evaluator()(np.zeros((1, *shape), np.uint8), whole(shape), RECIPE)
    np.testing.assert_array_equal(labels, np.zeros(shape))


def test_what_is_not_finite_does_not_spread() -> None:
    image = blobs((12, 40, 50)).astype(np.float32)
    low, high = RECIPE.intensity[0]
    clean = image.copy()
    for z, bad, good in ((2, np.nan, low), (5, -np.inf, low), (9, np.inf, high)):
        image[z, 20, 20], clean[z, 20, 20] = bad, good
    before = image.copy()
    labels = [evaluator()(i[None], whole(i.shape), RECIPE) for i in (image, clean)]
    np.testing.assert_array_equal(image, before, "the stack was changed")
    np.testing.assert_array_equal(labels[0], labels[1])
    assert labels[0].max() > 1
