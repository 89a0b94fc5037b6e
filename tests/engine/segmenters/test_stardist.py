"""StarDist on tiles that agree; without the extra, a clear word about what to install."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stores
from images import ImageOf
from placed import segmented
from worlds import disks

from cytopave.engine.boxes import Box
from cytopave.engine.errors import MissingExtraError, SegmenterError
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.score import match
from cytopave.engine.segmenters import StarDist
from cytopave.engine.segmenters.stardist_network import StarNetwork

HERE = all(importlib.util.find_spec(name) for name in ("stardist", "tensorflow"))
needed = pytest.mark.skipif(not HERE, reason="needs cytopave[stardist]")


@pytest.fixture
def image_of(tmp_path: Path) -> ImageOf:
    return ImageOf(tmp_path)


def write_folder(path: Path) -> Path:
    """A folder that looks like a network, as far as one can see without StarDist."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"axes": "YXC"}))
    (path / "weights_best.h5").write_bytes(b"weights")
    return path


def network(**fields: Any) -> StarNetwork:
    known: dict[str, Any] = {
        "stardist": "0.9.2",
        "sha256": "0" * 64,
        "axes": "YXC",
        "channels": 1,
        "step": (16, 16),
        "reach": (40, 40),
        "prob_thresh": 0.5,
        "nms_thresh": 0.4,
    }
    return StarNetwork.model_validate({**known, **fields})


# ------------------------------------------------------------- with or without StarDist
@pytest.mark.skipif(HERE, reason="StarDist is installed")
def test_without_the_extra_it_says_what_to_install(tmp_path: Path, image_of: ImageOf) -> None:
    image = image_of(np.zeros((32, 32), np.uint8))
    segmenter = StarDist(model=str(write_folder(tmp_path / "net")))
    with pytest.raises(MissingExtraError, match=re.escape('pip install "cytopave[stardist]"')):
        segmenter.resolve(image, channels=())


def test_folders_that_hold_no_network(tmp_path: Path, image_of: ImageOf) -> None:
    image = image_of(np.zeros((32, 32), np.uint8))
    with pytest.raises(SegmenterError, match=r"StarDist2D\.from_pretrained"):
        StarDist(model="2D_versatile_fluo").resolve(image, channels=())
    folder = write_folder(tmp_path / "net")
    (folder / "weights_best.h5").unlink()
    with pytest.raises(SegmenterError, match="holds no StarDist network"):
        StarDist(model=str(folder)).resolve(image, channels=())


def test_a_region_begins_where_poolings_do_and_holds_all_that_is_seen() -> None:
    segmenter = StarDist(model="net", network=network())
    shape = (1000, 1001)
    region = segmenter.region(Box((300, 500), (400, 600)), shape)
    assert region == Box((256, 448), (448, 640))
    assert segmenter.region(Box((0, 900), (60, 1001)), shape) == Box((0, 848), (112, 1001))


def test_the_digest_is_that_of_the_network_and_not_of_where_it_lies_or_computes() -> None:
    one = StarDist(model="a", network=network())
    assert one.digest() == StarDist(model="b", device="cpu", network=network()).digest()
    assert one.digest() == one.model_copy(update={"pieces": 4, "diameter": 9.0}).digest()
    assert one.digest() != StarDist(model="a", network=network(sha256="1" * 64)).digest()
    assert one.digest() != StarDist(model="a", network=network(), prob_thresh=0.6).digest()


def test_less_memory_means_more_pieces() -> None:
    segmenter = StarDist(model="net")
    sizes = []
    while segmenter is not None:
        sizes.append(segmenter.pieces)
        segmenter = segmenter.smaller()  # type: ignore[assignment]
    assert sizes == [1, 2, 4, 8]


# ------------------------------------------------------------- with StarDist
def scene(shape: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Discs in noise, and which is which."""
    truth = disks(shape, radius=9, pitch=24, seed=seed)
    noise = np.random.default_rng(seed).normal(100, 12, shape)
    return (noise + 300 * (truth > 0)).clip(0).astype(np.uint16), truth


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network that learned discs in a minute."""
    from stardist.models import Config2D, StarDist2D

    folder = tmp_path_factory.mktemp("networks")
    config = Config2D(
        n_rays=16,
        grid=(2, 2),
        unet_n_depth=2,
        unet_n_filter_base=8,
        net_conv_after_unet=16,
        train_patch_size=(96, 96),
        train_batch_size=4,
        train_epochs=6,
        train_steps_per_epoch=25,
        train_learning_rate=2e-3,
        train_tensorboard=False,
    )
    model = StarDist2D(config, name="discs", basedir=str(folder))
    scenes = [scene((128, 128), seed) for seed in range(6)]
    images = [((i - 100.0) / 300.0).astype(np.float32)[..., None] for i, _ in scenes]
    masks = [m.astype(np.int32) for _, m in scenes]
    model.train(images[:5], masks[:5], validation_data=(images[5:], masks[5:]))
    return folder / "discs"


@needed
def test_it_finds_the_discs_and_tiles_do_not_show(
    trained: Path, image_of: ImageOf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels, truth = scene((310, 290), 99)
    image = image_of(pixels)
    segmenter = StarDist(model=str(trained), device="cpu").resolve(image, channels=())
    assert segmenter.network is not None
    assert segmenter.network.step == (8, 8)
    assert 10 < segmenter.network.reach[0] < 100
    assert segmenter.prob_thresh == segmenter.network.prob_thresh
    assert segmenter.resolve(image, channels=()) == segmenter
    whole = segmenter.load()(pixels)
    assert match(truth, whole).average_precision > 0.9
    for tile, halo in ((96, 32), (128, 48)):
        merged = segmented(image, segmenter, tmp_path / f"{tile}", tile=tile, halo=halo)
        found = match(whole, merged, 0.97)
        assert (found.missed, found.spurious) == (0, 0)
    in_pieces = segmenter.model_copy(update={"pieces": 2}).load()(pixels)
    assert match(whole, in_pieces, 0.97).average_precision > 0.97
    assert capsys.readouterr().out == ""


@needed
def test_what_does_not_fit_the_network_is_refused(
    trained: Path, image_of: ImageOf, tmp_path: Path
) -> None:
    segmenter = StarDist(model=str(trained), device="cpu")
    stack = image_of(np.zeros((4, 32, 32), np.uint8))
    with pytest.raises(SegmenterError, match="is for planes and the image is a stack of 4"):
        segmenter.resolve(stack, channels=())
    two = stores.ome_image(tmp_path / "two.zarr", np.zeros((2, 32, 32), np.uint8), axes="cyx")
    with pytest.raises(SegmenterError, match="takes 1 channels and 2 are selected"):
        segmenter.resolve(open_image(two), channels=(0, 1))
    plane = image_of(np.zeros((32, 32), np.uint8))
    with pytest.raises(SegmenterError, match="intensity holds 2 ranges"):
        segmenter.model_copy(update={"intensity": ((0, 1), (0, 1))}).resolve(plane, channels=())
    with pytest.raises(SegmenterError, match="TensorFlow sees no GPU"):
        StarDist(model=str(trained), device="cuda").resolve(plane, channels=())


@needed
def test_a_worker_with_other_files_refuses(
    trained: Path, image_of: ImageOf, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    image = image_of(scene((64, 64), 1)[0])
    segmenter = StarDist(model=str(copy), device="cpu").resolve(image, channels=())
    (copy / "thresholds.json").write_text(json.dumps({"prob": 0.9, "nms": 0.3}))
    with pytest.raises(SegmenterError, match="is not the one that was planned with"):
        segmenter.load()
    (copy / "weights_best.h5").write_bytes(b"no weights at all")
    with pytest.raises(SegmenterError, match="cannot be loaded"):
        StarDist(model=str(copy), device="cpu").resolve(image, channels=())
