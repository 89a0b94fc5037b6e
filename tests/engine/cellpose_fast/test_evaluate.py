from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from images import nuclei
from networks import stock, tiny

from cytopave.engine.boxes import Box
from cytopave.engine.cellpose_fast.evaluate import Evaluator, Recipe
from cytopave.engine.cellpose_fast.network import Network
from cytopave.engine.errors import OutOfMemoryError
from cytopave.engine.score import average_precision
from cytopave.engine.segmenters.cellpose_placed import region
from cytopave.engine.segmenters.place import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

RECIPE = Recipe(1.0, ((500.0, 9000.0),), 0.4, 0.0, 15, 200)


@pytest.fixture(scope="module")
def network() -> Network:
    return Network(tiny(), batch=1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def whole(shape: tuple[int, ...], name: str = "image") -> Place:
    return Place(name, 0, shape, Box.of(shape), Box.of(shape))


def part(window: Box, shape: tuple[int, ...], recipe: Recipe = RECIPE) -> Place:
    return Place("image", 0, shape, region(window, shape, rescale=recipe.rescale), window)


def of_stock(image: np.ndarray, recipe: Recipe, **settings: Any) -> tuple[np.ndarray, np.ndarray]:
    """Labels of Cellpose's own `eval`, and its flows and logits ``(3, Y, X)``."""
    labels, (_, flows, logits), _ = stock(tiny()).eval(
        image.astype(np.float32),
        channel_axis=None if image.ndim == 2 else 0,
        normalize={"lowhigh": [list(r) for r in recipe.intensity]},
        diameter=None if recipe.rescale == 1 else 30 / recipe.rescale,
        max_size_fraction=1.0,
        niter=recipe.steps,
        **settings,
    )
    return labels, np.concatenate([flows, logits[None]])


@pytest.mark.parametrize(
    ("shape", "rescale"), [((451, 300), 1.0), ((150, 250), 1.0), ((300, 420), 30 / 22)]
)
def test_it_is_cellposes_own_eval_of_the_whole_image(
    network: Network, shape: tuple[int, int], rescale: float
) -> None:
    image = nuclei(shape, radius=11 / rescale)
    recipe = replace(RECIPE, rescale=rescale)
    evaluator = Evaluator(network)
    flows = evaluator.maps(image[None], whole(shape), recipe).numpy()
    labels = evaluator(image[None], whole(shape), recipe)
    expected, stocks_flows = of_stock(image, recipe)
    np.testing.assert_allclose(flows, stocks_flows, atol=2e-3)
    assert expected.max() > 15
    assert abs(int(labels.max()) - int(expected.max())) <= 1
    assert average_precision(expected, labels, threshold=0.9) > 0.95


def test_two_channels_are_evaluated_together(network: Network) -> None:
    image = np.stack([nuclei((180, 200)), nuclei((180, 200), seed=1)])
    recipe = replace(RECIPE, intensity=((400, 9000), (300, 12000)))
    flows = Evaluator(network).maps(image, whole((180, 200)), recipe)
    _, expected = of_stock(image, recipe)
    np.testing.assert_allclose(flows.numpy(), expected, atol=2e-3)


@pytest.mark.parametrize("rescale", [1.0, 30 / 24])
def test_tiles_see_what_the_whole_image_sees(network: Network, rescale: float) -> None:
    shape = (500, 430)
    image = nuclei(shape, seed=2)[None]
    recipe = replace(RECIPE, rescale=rescale)
    everything = Evaluator(network).maps(image, whole(shape), recipe)
    tiles = Evaluator(network)
    for window in Box.of(shape).blocks((211, 300)):
        place = part(window, shape, recipe)
        flows = tiles.maps(image[:, *place.region.slices], place, recipe)
        assert torch.equal(flows, everything[:, *window.slices])
    assert tiles.reused > 0, "tiles share patches"


def test_patches_of_another_image_time_or_range_are_not_taken(network: Network) -> None:
    image = nuclei((100, 90))[None]
    evaluator = Evaluator(network)
    place = whole((100, 90))
    evaluator.maps(image, place, RECIPE)
    for other in (replace(place, image="other"), replace(place, time=1)):
        evaluator.maps(image, other, RECIPE)
    evaluator.maps(image, place, replace(RECIPE, intensity=((0.0, 1.0),)))
    assert (evaluator.evaluated, evaluator.reused) == (4, 0)
    evaluator.maps(image, place, replace(RECIPE, flow_threshold=0.0))
    assert (evaluator.evaluated, evaluator.reused) == (4, 1)


def test_only_so_many_patches_are_kept(network: Network) -> None:
    image = nuclei((100, 90))[None]
    each = 3 * 256 * 256 * 4
    evaluator = Evaluator(network, keep_bytes=2 * each)
    for name in ("a", "b", "c", "b", "a"):
        evaluator.maps(image, whole((100, 90), name), RECIPE)
    assert (evaluator.evaluated, evaluator.reused) == (4, 1)


def test_the_same_twice_to_the_last_bit(network: Network) -> None:
    image = nuclei((300, 280), seed=3)[None]
    first, second = (Evaluator(network)(image, whole((300, 280)), RECIPE) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (3, 2), (17, 300)])
def test_images_of_any_size_are_evaluated(network: Network, shape: tuple[int, int]) -> None:
    labels = Evaluator(network)(np.zeros((1, *shape), np.uint8), whole(shape), RECIPE)
    np.testing.assert_array_equal(labels, np.zeros(shape))


def test_what_is_not_finite_does_not_spread(network: Network) -> None:
    image = nuclei((120, 130), seed=4).astype(np.float32)
    low, high = RECIPE.intensity[0]
    clean = image.copy()
    for place, bad, good in ((5, np.nan, low), (40, -np.inf, low), (77, np.inf, high)):
        image[place, place], clean[place, place] = bad, good
    before = image.copy()
    labels = [Evaluator(network)(i[None], whole(i.shape), RECIPE) for i in (image, clean)]
    np.testing.assert_array_equal(image, before, "the tile was changed")
    np.testing.assert_array_equal(labels[0], labels[1])
    assert labels[0].max() > 3


def test_objects_can_be_everywhere(network: Network) -> None:
    """Without any background, and with neither check nor smallest size."""
    recipe = replace(RECIPE, cellprob_threshold=-1e6, flow_threshold=0.0, min_size=0)
    labels = Evaluator(network)(nuclei((90, 80))[None], whole((90, 80)), recipe)
    assert labels.shape == (90, 80)
    assert labels.max() > 3


class Batches:
    """A network that says something of each patch by itself, and notes the size of each batch."""

    device = torch.device("cpu")

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.sizes: list[int] = []

    def __call__(self, patches: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(patches))
        brightness = patches.mean(1, keepdim=True)
        return torch.cat([brightness.roll(k, -1) for k in range(3)], 1)


def tiles_of(shape: tuple[int, int], tile: tuple[int, int]) -> list[Place]:
    return [part(window, shape) for window in Box.of(shape).blocks(tile)]


@pytest.mark.parametrize("batch", [1, 4, 16, 100])
def test_the_next_window_fills_the_last_ones_batch(batch: int) -> None:
    shape = (900, 820)
    image = nuclei(shape, seed=5)[None]
    places = tiles_of(shape, (300, 410))
    one: Any = Batches(1)
    everything = Evaluator(one).maps(image, whole(shape), RECIPE)
    sizes = []
    for ahead in (False, True):  # ahead, as `segment_tiles` goes
        network: Any = Batches(batch)
        evaluator = Evaluator(network, keep_bytes=0)
        begun = []
        for place in places:
            begun.append(evaluator.begin(image[:, *place.region.slices], place, RECIPE))
            if len(begun) > ahead:
                begun[-1 - ahead].complete()
        for place, window in zip(places, begun, strict=True):
            assert torch.equal(window.complete(), everything[:, *place.window.slices])
        assert sum(network.sizes) == evaluator.evaluated
        assert not evaluator._waiting
        assert not evaluator._open
        assert not evaluator._kept, "nothing was to be kept"
        sizes.append(network.sizes)
    assert len(sizes[1]) <= len(sizes[0])
    if batch == 4:  # each window adds some batches
        assert len(sizes[1]) < len(sizes[0])
        assert set(sizes[1][:-1]) == {4}


def test_a_window_alone_waits_for_no_other() -> None:
    network: Any = Batches(16)
    evaluator = Evaluator(network)
    begun = evaluator.begin(nuclei((90, 80))[None], whole((90, 80)), RECIPE)
    assert begun.maps is None
    assert begun.settle().finish().shape == (90, 80)
    assert network.sizes == [1]


def test_without_its_network_a_window_is_to_be_begun_again() -> None:
    network: Any = Batches(16)
    begun = Evaluator(network).begin(nuclei((90, 80))[None], whole((90, 80)), RECIPE)
    with pytest.raises(OutOfMemoryError, match="given up"):
        begun.settle()


def test_what_nobody_waits_for_is_not_evaluated() -> None:
    """After a failure: the next image may have other channels, which would fit into no batch."""
    network: Any = Batches(16)
    evaluator = Evaluator(network)
    evaluator.begin(nuclei((90, 80))[None], whole((90, 80), "a"), RECIPE)
    two = np.stack([nuclei((90, 80))] * 2)
    recipe = replace(RECIPE, intensity=RECIPE.intensity * 2)
    begun = evaluator.begin(two, whole((90, 80), "b"), recipe)
    assert begun.complete().shape == (3, 90, 80)
    assert network.sizes == [1]
