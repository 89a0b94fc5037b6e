"""Which path Cellpose takes, and how the fast one is planned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cytopave.engine.boxes import Box
from cytopave.engine.errors import SegmenterError
from cytopave.engine.segmenters import Cellpose
from cytopave.engine.segmenters import cellpose_weights as weights
from cytopave.engine.segmenters.place import Place

pytestmark = pytest.mark.skipif(
    weights.installed()[1] != 4, reason="the bundled network runs in Cellpose 4"
)

NETWORK = weights.inspect(weights.find("nuclei-tiny"))


class Flat:
    """What resolving asks of an image whose intensity range is given."""

    def __init__(self, axes: str, shape: tuple[int, ...]) -> None:
        self.spatial_axes, self.spatial_shape = axes, shape


def resolved(shape: tuple[int, ...] = (400, 300), **fields: Any) -> Cellpose:
    given: dict[str, Any] = {"model": "nuclei-tiny", "device": "cpu", "intensity": ((0, 100),)}
    image: Any = Flat("zyx"[-len(shape) :], shape)
    return Cellpose(**(given | fields)).resolve(image, channels=())


def test_the_fast_path_is_taken_where_it_applies() -> None:
    assert resolved().path == "fast"
    assert resolved((1, 400, 300)).path == "fast"
    assert resolved(path="stock").path == "stock"
    assert resolved((9, 400, 300), do_3D=True).path == "stock"


def test_asking_for_what_does_not_apply_is_refused() -> None:
    with pytest.raises(SegmenterError, match=r"planes, and do_3D=True.*path='auto'"):
        resolved((9, 400, 300), do_3D=True, path="fast")


def test_the_path_decides_the_labels_and_the_batch_does_not() -> None:
    assert resolved().digest() == resolved(path="fast").digest()
    assert resolved().digest() != resolved(path="stock").digest()
    assert resolved().digest() == resolved(batch_size=5).digest()


def test_the_batch_is_decided_with_the_path_and_shrinks_to_one() -> None:
    assert resolved(path="stock").batch_size == 8
    batch: Cellpose | None = resolved(batch_size=6)
    sizes: list[int | None] = []
    while batch is not None:
        sizes.append(batch.batch_size)
        batch = batch.smaller()
    assert sizes == [6, 3, 1]


def test_an_unresolved_segmenter_reads_its_window() -> None:
    window = Box((10, 10), (50, 50))
    assert Cellpose(path="fast").region(window, (400, 300)) == window


def test_a_plane_of_a_stack_and_a_plane_are_segmented_alike() -> None:
    random = np.random.default_rng(0)
    image = random.integers(0, 100, (120, 130)).astype(np.uint8)
    image[30:60, 40:75] += 100
    flat = resolved((120, 130)).load()(image)
    box = Box((0, 0, 0), (1, 120, 130))
    stack = resolved((1, 120, 130)).at(Place("one", 0, (1, 120, 130), box, box))(image[np.newaxis])
    np.testing.assert_array_equal(stack[0], flat)
    assert flat.max() > 0


def test_releasing_drops_the_network() -> None:
    from cytopave.engine.segmenters import cellpose

    segmenter = resolved()
    first = segmenter._evaluator()
    assert segmenter._evaluator() is first
    segmenter.release()
    assert segmenter._evaluator() is not first
    cellpose._evaluators.drop()
    assert torch.is_grad_enabled()


def test_the_memory_of_a_tile_grows_with_pixels_and_with_the_batch() -> None:
    segmenter = resolved(device="cuda", batch_size=8)
    small, large = (segmenter.device_bytes((n, n), 2, 1) for n in (512, 2048))
    assert small < large
    more = resolved(device="cuda", batch_size=64)
    assert more.device_bytes((512, 512), 2, 1) > small
    assert resolved(device="cpu").device_bytes((512, 512), 2, 1) == 0
