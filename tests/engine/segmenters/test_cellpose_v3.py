from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from images import ImageOf

from cytopave.engine import samples
from cytopave.engine.errors import SegmenterError
from cytopave.engine.segmenters import Cellpose
from cytopave.engine.segmenters import cellpose_weights as weights

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(weights.installed()[1] != 3, reason="needs Cellpose 3")


@pytest.fixture
def image_of(tmp_path: Path) -> ImageOf:
    return ImageOf(tmp_path)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of random weights: what it finds means nothing, but it finds it every time."""
    from cellpose.resnet_torch import CPnet

    torch.manual_seed(3)
    net = CPnet([2, 32, 64, 128, 256], 3, sz=3, mkldnn=False, diam_mean=20.0)
    path: Path = tmp_path_factory.mktemp("models") / "random"
    net.save_model(str(path))
    return path


@pytest.mark.parametrize("diameter", [None, 25.0])
def test_a_tile_equals_cellpose_called_by_hand(
    path: Path, diameter: float | None, image_of: ImageOf
) -> None:
    from cellpose.models import CellposeModel

    field = samples.dsb2018()
    tile = field.image[:120, :140]
    segmenter = Cellpose(
        model=str(path),
        diameter=diameter,
        flow_threshold=0,
        cellprob_threshold=-50,
        min_size=0,
        device="cpu",
    ).resolve(image_of(field.image), channels=())
    assert segmenter.niter == (250 if diameter else 200)
    assert segmenter.intensity is not None
    expected, *_ = CellposeModel(pretrained_model=str(path)).eval(
        tile,
        channels=[0, 0],
        diameter=diameter,
        flow_threshold=0,
        cellprob_threshold=-50,
        min_size=0,
        max_size_fraction=1,
        # the second channel is empty and stays zero, as under percentiles
        normalize={"normalize": True, "lowhigh": [list(segmenter.intensity[0]), [0, 1]]},
    )
    labels = segmenter.load()(tile)
    assert labels.max() > 0
    np.testing.assert_array_equal(labels, expected)


def test_what_cellpose_3_cannot_do_is_refused(path: Path, image_of: ImageOf) -> None:
    three = image_of(np.zeros((3, 9, 9), np.uint8), axes="cyx")
    with pytest.raises(SegmenterError, match="at most 2 channels"):
        Cellpose(model=str(path)).resolve(three, channels=(0, 1, 2))
    stack = image_of(np.zeros((3, 9, 9), np.uint8))
    uneven = Cellpose(model=str(path), do_3D=True, flow3D_smooth=(2, 1, 1))
    with pytest.raises(SegmenterError, match="one number as flow3D_smooth"):
        uneven.resolve(stack, channels=())
    with pytest.raises(SegmenterError, match="Cellpose 4 and Cellpose 3 is installed"):
        Cellpose(model="nuclei-tiny").resolve(stack, channels=())


def test_small_objects_go_where_a_tile_has_no_background(path: Path, image_of: ImageOf) -> None:
    segmenter = Cellpose(
        model=str(path),
        intensity=((0, 255),),
        flow_threshold=0,
        cellprob_threshold=-50,
        min_size=200,
        device="cpu",
    ).resolve(image_of(np.zeros((9, 9), np.uint8)), channels=())
    tile = samples.dsb2018().image[:100, :100]
    everything = segmenter.model_copy(update={"min_size": 0}).load()(tile)
    sizes = np.bincount(everything.ravel())
    kept = segmenter.load()(tile)
    large = np.isin(everything, np.flatnonzero(sizes >= 200)) & (everything > 0)
    np.testing.assert_array_equal(kept > 0, large)
