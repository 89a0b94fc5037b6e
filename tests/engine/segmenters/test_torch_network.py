from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch_functions
import zarr
from placed import segmented
from pydantic import ValidationError
from runs import run_here
from scipy import ndimage
from torch.nn import functional as F
from worlds import same_partition

from cytopave.engine.errors import LabelError, SegmenterError, TileError
from cytopave.engine.omezarr.image import Image, open_image
from cytopave.engine.omezarr.labels import open_labels
from cytopave.engine.patchwise.grid import axis
from cytopave.engine.segmenters import TorchNetwork
from cytopave.engine.tiling import Tiling

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHAPE = (520, 610)
BLOBS = TorchNetwork(
    network="torch_functions:build",
    labels="torch_functions:parts",
    intensity=((0.0, 1000.0),),
    device="cpu",
)


def write(path: Path, pixels: np.ndarray) -> Image:
    chunks = (*(1,) * (pixels.ndim - 2), 100, 90)
    array = zarr.create_array(str(path), shape=pixels.shape, chunks=chunks, dtype=pixels.dtype)
    array[:] = pixels
    return open_image(str(path), axes="czyx"[-pixels.ndim :] if pixels.ndim != 3 else "zyx")


def spots(shape: tuple[int, ...], *, seed: int = 0) -> np.ndarray:
    """Blurred spots, of which many touch, uint16."""
    random = np.random.default_rng(seed)
    image = np.zeros(shape)
    image[tuple(random.integers(0, n, image.size // 400) for n in shape)] = 1
    blurred = ndimage.gaussian_filter(image, (*(0,) * (len(shape) - 2), 4, 4))
    return np.asarray(blurred / blurred.max() * 1500, np.uint16)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return write(tmp_path_factory.mktemp("spots") / "spots.zarr", spots(SHAPE))


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    BLOBS.release()
    torch_functions.SHOWN.clear()
    yield
    BLOBS.release()


def by_hand(pixels: np.ndarray, *, above: float = 0.3) -> np.ndarray:
    """Labels of an image of at most one patch, without any of our machinery."""
    height, width = pixels.shape
    before = [(256 - 16 - n) // 2 + 8 for n in pixels.shape]
    after = [256 - n - b for n, b in zip(pixels.shape, before, strict=True)]
    patch = F.pad(
        torch.from_numpy(pixels / 1000).float(), (before[1], after[1], before[0], after[0])
    )
    maps = torch_functions.build(torch.device("cpu"))(patch[None, None])[0]
    cut = maps[:, before[0] : before[0] + height, before[1] : before[1] + width]
    return torch_functions.parts(cut, above=above)


def test_of_one_patch_it_is_the_network_and_the_function(tmp_path: Path) -> None:
    pixels = spots((180, 200), seed=3)
    segmenter = BLOBS.resolve(write(tmp_path / "a.zarr", pixels), channels=())
    labels = segmenter.load()(pixels)
    assert labels.max() > 20
    np.testing.assert_array_equal(labels, by_hand(pixels))


@pytest.mark.parametrize("labels", ["parts", "parts_on_device"])
@pytest.mark.parametrize(("scale", "tile"), [(1.0, 128), (1.0, 200), (1.4, 200)])
def test_nobody_can_find_the_tiles(
    image: Image, tmp_path: Path, labels: str, scale: float, tile: int
) -> None:
    changes = {"scale": scale, "labels": f"torch_functions:{labels}"}
    segmenter = BLOBS.model_copy(update=changes).resolve(image, channels=())
    one = segmented(image, segmenter, tmp_path / "one", tile=1000, halo=32)
    many = segmented(image, segmenter, tmp_path / "many", tile=tile, halo=32)
    assert one.max() > 100
    assert same_partition(one, many)


def test_each_patch_is_evaluated_once_for_all_tiles(image: Image, tmp_path: Path) -> None:
    output = str(tmp_path / "labels.zarr")
    run_here(image.url, segmenter=BLOBS, tiling=Tiling(tile=(150, 200), halo=32), output=output)
    patches = [len(axis(n).starts) for n in SHAPE]
    assert [(1, 1, 256, 256)] * (patches[0] * patches[1]) == torch_functions.SHOWN


def test_channels_are_scaled_by_their_own_ranges(tmp_path: Path) -> None:
    two = np.stack([spots((90, 100), seed=1), spots((90, 100), seed=2) // 10])
    path = tmp_path / "two.zarr"
    zarr.create_array(str(path), shape=two.shape, chunks=(1, 90, 100), dtype="u2")[:] = two
    image = open_image(str(path), axes="cyx")
    segmenter = BLOBS.model_copy(update={"intensity": ((0.0, 1000.0), (0.0, 100.0))})
    labels = segmenter.resolve(image, channels=(0, 1)).load()(two)
    mean = (two[0] / 1000 + two[1] / 100) / 2 * 1000
    np.testing.assert_array_equal(labels, by_hand(mean))
    with pytest.raises(SegmenterError, match="holds 1 ranges and 2 channels are selected"):
        BLOBS.resolve(image, channels=(0, 1))


def test_ranges_are_those_of_the_whole_image(image: Image) -> None:
    low, high = np.percentile(np.asarray(zarr.open_array(image.url)[:]), (1, 99))
    ((below, top),) = BLOBS.model_copy(update={"intensity": None}).resolve(
        image, channels=()
    ).intensity or ((0, 0),)
    assert (below, top) == pytest.approx((low, high), abs=1)


def test_stacks_are_segmented_plane_by_plane(tmp_path: Path) -> None:
    planes = np.stack([spots((120, 140), seed=s) for s in (1, 1, 2)])
    image = write(tmp_path / "stack.zarr", planes)
    request: dict[str, Any] = {"segmenter": BLOBS, "tiling": Tiling(tile=(70, 90), halo=32)}
    run_here(image.url, output=str(tmp_path / "labels.zarr"), **request)
    labels = np.asarray(open_labels(str(tmp_path / "labels.zarr"), "cells").levels[0][:])
    np.testing.assert_array_equal(labels[0], labels[1])
    for plane, own in zip(planes, labels, strict=True):
        assert same_partition(by_hand(plane), own)


@pytest.mark.parametrize(("tile", "halo"), [(100, 60), (64, 60), (64, 45)])
def test_sections_are_joined_alike_in_all_tiles(tmp_path: Path, tile: int, halo: int) -> None:
    """Windows cut sections off, which then may look like others' best matches."""
    random = np.random.default_rng(5)
    planes = np.zeros((6, 300, 330), np.uint16)
    y, x = np.indices(planes.shape[1:])
    for plane in planes:
        for cy, cx in random.uniform(0, 300, (55, 2)):
            plane[(y - cy) ** 2 + (x - cx) ** 2 <= random.uniform(3, 10) ** 2] = 900
    image = write(tmp_path / "stack.zarr", planes)
    segmenter = BLOBS.model_copy(update={"kwargs": {"reach": 1}, "label_kwargs": {"above": 0.5}})
    found = []
    for name, tiling in (
        ("one", Tiling(tile=(400, 400), halo=halo)),
        ("many", Tiling(tile=(tile, tile), halo=halo)),
    ):
        output = str(tmp_path / f"{name}.zarr")
        run_here(image.url, segmenter=segmenter, tiling=tiling, output=output)
        found.append(np.asarray(open_labels(output, "cells").levels[0][:]))
    assert found[0].max() > 60
    np.testing.assert_array_equal(found[0], found[1])


def test_small_objects_are_dropped(image: Image) -> None:
    pixels = np.asarray(zarr.open_array(image.url)[:180, :200])
    every = BLOBS.resolve(image, channels=()).load()(pixels)
    sizes = np.bincount(every.ravel())[1:]
    least = int(np.median(sizes))
    large = BLOBS.model_copy(update={"min_size": least}).resolve(image, channels=()).load()(pixels)
    assert np.array_equal(np.unique(large)[1:], np.flatnonzero(sizes >= least) + 1)


@pytest.mark.parametrize(
    "how", ["a tuple", "half as large", "without maps", "one less", "integers"]
)
def test_what_is_no_map_of_its_patches_ends_the_run_with_the_networks_name(
    image: Image, tmp_path: Path, how: str
) -> None:
    wrong = {"network": "torch_functions:answering", "kwargs": {"how": how}}
    segmenter = BLOBS.model_copy(update=wrong)
    with pytest.raises(LabelError, match=r"^torch_functions:answering (returned|answered)"):
        run_here(image.url, segmenter=segmenter, tiling=Tiling(), output=str(tmp_path / "l.zarr"))


@pytest.mark.parametrize("how", ["floats", "maps", "a list", "negative"])
def test_what_is_no_label_image_ends_the_run_with_the_functions_name(
    image: Image, tmp_path: Path, how: str
) -> None:
    wrong = {"labels": "torch_functions:labelling", "label_kwargs": {"how": how}}
    segmenter = BLOBS.model_copy(update=wrong)
    with pytest.raises(LabelError, match=r"^the function torch_functions:labelling returned"):
        run_here(image.url, segmenter=segmenter, tiling=Tiling(), output=str(tmp_path / "l.zarr"))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"network": "torch_functions:broken_build"},
            SegmenterError,
            "^torch_functions:broken_build raised FileNotFoundError: no weights",
        ),
        (
            {"network": "torch_functions:answering", "kwargs": {"how": "an error"}},
            TileError,
            r"torch_functions:answering, on patches of shape \(1, 1, 256, 256\), raised KeyError",
        ),
        (
            {"labels": "torch_functions:labelling", "label_kwargs": {"how": "an error"}},
            TileError,
            "RuntimeError: torch_functions:labelling raised KeyError: 'an error'",
        ),
        (
            {"network": "torch_functions:answering", "kwargs": {"how": "no numbers"}},
            LabelError,
            "maps that hold NaN",
        ),
    ],
)
def test_errors_of_a_users_code_say_whose_they_are(
    image: Image,
    tmp_path: Path,
    change: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    segmenter = BLOBS.model_copy(update=change)
    with pytest.raises(error, match=message):
        run_here(image.url, segmenter=segmenter, tiling=Tiling(), output=str(tmp_path / "l.zarr"))


@pytest.mark.parametrize(
    "wrong", [{"intensity": [[5, 5]]}, {"intensity": [[9, 5]]}, {"scale": float("inf")}]
)
def test_impossible_parameters_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TorchNetwork(network="torch_functions:build", labels="torch_functions:parts", **wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": "torch_functions:missing"}, "there is no 'missing' in the module"),
        ({"network": "no_such_module:build"}, "there is no module 'no_such_module'"),
        ({"labels": "torch_functions:NOTHING"}, "is a int and not a function"),
        ({"kwargs": {"width": 3}}, "torch_functions:build cannot be called as f\\(device, width=3"),
        ({"label_kwargs": {"below": 3}}, "torch_functions:parts cannot be called as f\\(maps"),
    ],
)
def test_what_cannot_be_called_is_refused_before_any_tile(
    image: Image, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(SegmenterError, match=message):
        BLOBS.model_copy(update=change).resolve(image, channels=())
    assert not torch_functions.SHOWN


def test_a_builder_that_returns_nothing_is_told_of(image: Image) -> None:
    nothing = BLOBS.model_copy(update={"network": "torch_functions:building_nothing"})
    with pytest.raises(SegmenterError, match="building_nothing returned a NoneType"):
        nothing.resolve(image, channels=()).load()
    with pytest.raises(SegmenterError, match="call resolve\\(image\\) before load"):
        BLOBS.model_copy(update={"intensity": None}).load()


def test_a_worker_with_other_functions_is_told_of(image: Image) -> None:
    resolved = BLOBS.resolve(image, channels=())
    for changed in ("network_sha256", "labels_sha256"):
        other = resolved.model_copy(update={changed: "0" * 64})
        with pytest.raises(SegmenterError, match="is not the function that was planned with"):
            other.load()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_is_an_error(image: Image) -> None:
    asked = BLOBS.model_copy(update={"device": "cuda"}).resolve(image, channels=())
    for refuse in (asked.check_process, asked.load):
        with pytest.raises(SegmenterError, match="PyTorch sees no CUDA GPU"):
            refuse()


def test_digest_follows_what_decides_the_labels(image: Image) -> None:
    def digest(**changes: Any) -> str:
        return BLOBS.model_copy(update=changes).resolve(image, channels=()).digest()

    same = {"batch_size": 2, "device": "auto", "diameter": 9.0, "maps": 7, "percentiles": (2, 98)}
    assert digest(**same) == digest()
    other: list[dict[str, Any]] = [
        {"labels": "torch_functions:parts_on_device"},
        {"kwargs": {"reach": 4}},
        {"label_kwargs": {"above": 0.4}},
        {"scale": 1.5},
        {"intensity": ((0.0, 900.0),)},
        {"min_size": 5},
        {"version": "2"},
    ]
    assert len({digest(), *(digest(**change) for change in other)}) == 8


def test_the_patch_batch_is_halved_to_one_and_memory_is_counted() -> None:
    sizes = []
    shrunk: TorchNetwork | None = BLOBS
    while shrunk is not None:
        sizes.append(shrunk.batch_size)
        shrunk = shrunk.smaller()
    assert sizes == [16, 8, 4, 2, 1]
    more = BLOBS.model_copy(update={"maps": 5})
    assert more.host_bytes((100, 100), 2, 1) - BLOBS.host_bytes((100, 100), 2, 1) == 240_000
    assert BLOBS.device_bytes((100, 100), 2, 1) == 0
    assert BLOBS.placed_on(gpu=True).device == "cpu"
    auto = BLOBS.model_copy(update={"device": "auto"})
    assert auto.placed_on(gpu=True).device_bytes((100, 100), 2, 1) > 2**29


@pytest.mark.gpu
def test_on_a_gpu_nobody_can_find_the_tiles_either(image: Image, tmp_path: Path) -> None:
    changes = {"device": "cuda", "labels": "torch_functions:parts_on_device", "batch_size": 4}
    segmenter = BLOBS.model_copy(update=changes).resolve(image, channels=())
    one = segmented(image, segmenter, tmp_path / "one", tile=1000, halo=32)
    many = segmented(image, segmenter, tmp_path / "many", tile=150, halo=32)
    assert one.max() > 100
    assert same_partition(one, many)
    assert {shape[0] for shape in torch_functions.SHOWN} == {4}
