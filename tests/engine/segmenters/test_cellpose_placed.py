"""Which path Cellpose takes, and how the fast one is planned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from worlds import same_partition

from cytopave.engine.boxes import Box
from cytopave.engine.errors import SegmenterError
from cytopave.engine.omezarr.image import Image, Level
from cytopave.engine.segmenters import Cellpose
from cytopave.engine.segmenters import cellpose_weights as weights
from cytopave.engine.segmenters.cellpose_placed import resolved_path
from cytopave.engine.segmenters.place import Place
from cytopave.engine.segmenters.planes import stitched

pytestmark = pytest.mark.skipif(
    weights.installed()[1] != 4, reason="the bundled network runs in Cellpose 4"
)

NETWORK = weights.inspect(weights.find("nuclei-tiny"))


def flat(axes: str, shape: tuple[int, ...]) -> Image:
    """An image that is nowhere: resolving reads no pixel where the intensity range is given."""
    ones = (1.0,) * len(shape)
    return Image(
        url="/nowhere",
        level=0,
        axes=axes,
        shape=shape,
        dtype="uint16",
        chunks=shape,
        shards=None,
        scale=ones,
        translation=(0.0,) * len(shape),
        units=(None,) * len(shape),
        levels=(Level("", shape, ones, (0.0,) * len(shape)),),
        channels=(),
        version=None,
        zarr_format=3,
        storage_options={},
    )


def resolved(shape: tuple[int, ...] = (400, 300), **fields: Any) -> Cellpose:
    given: dict[str, Any] = {"model": "nuclei-tiny", "device": "cpu", "intensity": ((0, 100),)}
    image = flat("zyx"[-len(shape) :], shape)
    return Cellpose(**(given | fields)).resolve(image, channels=())


def test_the_fast_path_is_taken_where_it_applies() -> None:
    assert resolved().path == "fast"
    assert resolved((1, 400, 300)).path == "fast"
    assert resolved(path="stock").path == "stock"
    assert resolved((9, 400, 300), do_3D=True).path == "fast"
    assert resolved((9, 400, 300), stitch=True).path == "fast"


@pytest.mark.parametrize(
    ("change", "message"),
    [({"generation": 3}, "of Cellpose 3"), ({"encoder": None}, "a SAM encoder")],
)
def test_asking_for_what_does_not_apply_is_refused(change: dict[str, Any], message: str) -> None:
    network = NETWORK.model_copy(update=change)
    assert resolved_path("auto", network) == "stock"
    with pytest.raises(SegmenterError, match=rf"{message}.*path='auto'"):
        resolved_path("fast", network)


def test_the_path_decides_the_labels_and_the_batch_does_not() -> None:
    assert resolved().digest() == resolved(path="fast").digest()
    assert resolved().digest() != resolved(path="stock").digest()
    assert resolved().digest() == resolved(batch_size=5).digest()
    stacks = [resolved((9, 50, 40), **how) for how in ({"do_3D": True}, {"stitch": True})]
    assert stacks[0].digest() != stacks[1].digest()


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


def test_several_planes_are_segmented_one_by_one_and_stitched() -> None:
    random = np.random.default_rng(0)
    stack = random.integers(0, 100, (3, 90, 100)).astype(np.uint8)
    stack[:2, 30:60, 40:75] += 100
    planes = [resolved((90, 100)).load()(plane) for plane in stack]
    found = resolved(stack.shape, stitch=True).load()(stack)
    assert same_partition(found, stitched(planes))
    assert 0 < found.max() < sum(plane.max() for plane in planes)
    box = Box((1, 0, 0), (2, 90, 100))
    one = resolved(stack.shape, stitch=True).at(Place("a", 0, stack.shape, box, box))(stack[1:2])
    np.testing.assert_array_equal(one[0], planes[1])


def test_planes_of_a_stack_do_not_share_patches() -> None:
    stack = np.zeros((2, 90, 100), np.uint8)
    stack[1, 30:60, 40:75] = 100
    segmenter = resolved(stack.shape, stitch=True)
    boxes = [Box((z, 0, 0), (z + 1, 90, 100)) for z in range(2)]
    found = [
        segmenter.at(Place("shared", 0, stack.shape, box, box))(stack[box.slices]).max()
        for box in boxes
    ]
    assert found == [0, 1]


def test_a_stack_is_segmented_in_one_way() -> None:
    with pytest.raises(ValidationError, match="choose one of them"):
        Cellpose(do_3D=True, stitch=True)


def test_the_region_of_a_stack_is_what_its_patches_see() -> None:
    window, shape = Box((0, 300, 300), (9, 340, 350)), (9, 1000, 1000)
    volume = resolved(shape, do_3D=True).region(window, shape)
    plane = resolved(shape, stitch=True).region(Box((4, 300, 300), (5, 340, 350)), shape)
    assert volume.slices[1:] == plane.slices[1:]
    assert (volume.slices[0], plane.slices[0]) == (slice(0, 9), slice(4, 5))
    smooth = resolved(shape, do_3D=True, flow3D_smooth=30.0).region(window, shape)
    assert smooth.size > volume.size
    assert resolved(shape, do_3D=True, path="stock").region(window, shape) == window


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


def test_where_cpu_cores_compute_the_window_takes_the_hosts_memory() -> None:
    # bytes a pixel that benchmarks/host_memory.py saw, with 29 % of foreground; 80 % are counted
    planes = resolved(device="cpu").host_bytes((1024, 1024), 2, 1) / 1024**2
    assert 126 < planes < 200
    stack = resolved((24, 400, 300), do_3D=True, device="cpu").host_bytes((24, 128, 128), 2, 1)
    assert stack > 102 * 24 * 128**2
    assert resolved(device="cpu", path="stock").host_bytes((100, 100), 2, 1) == 335 * 0.8 * 100**2
    assert resolved(device="cuda").host_bytes((1024, 1024), 2, 1) == 0


def test_the_memory_of_a_stack_grows_with_what_its_patches_see() -> None:
    segmenter = resolved((30, 400, 300), do_3D=True, device="cuda")
    thin = segmenter.device_bytes((30, 512, 512), 2, 1)
    assert thin < segmenter.device_bytes((60, 512, 512), 2, 1)
    wider = resolved((30, 400, 300), do_3D=True, device="cuda", diameter=15.0)
    assert thin < wider.device_bytes((30, 512, 512), 2, 1)
    smooth = resolved((30, 400, 300), do_3D=True, device="cuda", flow3D_smooth=3.0)
    assert thin < smooth.device_bytes((30, 512, 512), 2, 1)
    # two bytes a pixel and a channel, of all that patches see
    more = segmenter.device_bytes((30, 512, 512), 2, 2) - thin
    assert more >= 2 * 30 * (512 + 510) ** 2
