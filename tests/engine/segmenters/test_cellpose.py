from __future__ import annotations

import copy
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stores
import torch
from images import ImageOf
from pydantic import TypeAdapter, ValidationError

from cytopave.engine import samples
from cytopave.engine.errors import SegmenterError
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.score import average_precision
from cytopave.engine.segmenters import Cellpose, Segmenter, cellpose_adapter
from cytopave.engine.segmenters import cellpose_weights as weights
from cytopave.engine.segmenters.cellpose_v4 import _encoder_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    weights.installed()[1] != 4, reason="the bundled network runs in Cellpose 4"
)

TINY = Cellpose(model="nuclei-tiny", device="cpu", use_bfloat16=False, path="stock")
RANGE = ((0.0, 100.0),)


@pytest.fixture
def image_of(tmp_path: Path) -> ImageOf:
    return ImageOf(tmp_path)


@pytest.fixture(scope="module")
def field() -> samples.Field:
    """A held-out field of 512 x 512 pixels with 35 nuclei."""
    (one,) = (f for f in samples.nuclei_fields("held-out") if f.name.endswith("w1cDAPI_s43"))
    return one


@pytest.fixture(scope="module")
def random_network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A minute network of random weights: what it finds means nothing, but is found every time."""
    from cellpose.vit import CPSAM

    size = weights.Encoder(
        depth=1,
        embed_dim=16,
        num_heads=1,
        mlp_ratio=1,
        out_chans=8,
        window_size=0,
        global_attn_indexes=(0,),
    )
    torch.manual_seed(0)
    with _encoder_of(size):
        net = CPSAM()
    path = tmp_path_factory.mktemp("models") / "random"
    torch.save({name: tensor.clone() for name, tensor in net.state_dict().items()}, path)
    return path


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def plane(image_of: ImageOf, **fields: Any) -> Cellpose:
    """A segmenter of planes with a given intensity range, resolved."""
    image = image_of(np.zeros((32, 32), np.uint16))
    return TINY.model_copy(update={"intensity": RANGE, **fields}).resolve(image, channels=())


def test_the_bundled_network_segments_a_field_it_never_saw(
    field: samples.Field, image_of: ImageOf
) -> None:
    segmenter = TINY.resolve(image_of(field.image), channels=())
    before = field.image.copy()
    labels = segmenter.load()(field.image)
    assert average_precision(field.masks, labels, 0.5) >= 0.9
    assert average_precision(field.masks, labels, 0.75) >= 0.85
    np.testing.assert_array_equal(field.image, before)


def test_a_tile_equals_cellpose_called_by_hand(field: samples.Field, image_of: ImageOf) -> None:
    tile = field.image[:200, :220]
    segmenter = TINY.model_copy(update={"diameter": 25.0, "flow_threshold": 0.6})
    segmenter = segmenter.resolve(image_of(field.image), channels=())
    low_high = np.percentile(field.image, (1, 99))
    assert segmenter.intensity is not None
    assert segmenter.intensity[0] == pytest.approx(tuple(low_high))
    model: Any = segmenter._built().model  # type: ignore[attr-defined]
    expected, *_ = model.eval(
        tile,
        diameter=25,
        flow_threshold=0.6,
        max_size_fraction=1,
        normalize={"normalize": True, "lowhigh": list(low_high)},
    )
    assert expected.max() > 3
    np.testing.assert_array_equal(segmenter.load()(tile), expected)


def test_neither_the_tile_nor_cellposes_defaults_change(
    field: samples.Field, image_of: ImageOf
) -> None:
    from cellpose import models

    defaults = copy.deepcopy(models.normalize_default)
    tile = field.image[:100, :100].astype(np.float32)
    before = tile.copy()
    plane(image_of).load()(tile)
    np.testing.assert_array_equal(tile, before)
    assert models.normalize_default == defaults
    assert defaults["normalize"] is True


def test_a_tile_without_signal_has_no_objects(image_of: ImageOf, field: samples.Field) -> None:
    noise = np.random.default_rng(0).normal(110, 5, (256, 256)).astype(np.uint16)
    segmenter = TINY.resolve(image_of(field.image), channels=())
    assert segmenter.load()(noise).max() == 0


def test_pixels_that_are_not_finite_do_not_spread(field: samples.Field, image_of: ImageOf) -> None:
    segmenter = TINY.resolve(image_of(field.image), channels=())
    tile = field.image[:200, :200].astype(np.float32)
    clean = segmenter.load()(tile)
    tile[0, :3] = [np.nan, -np.inf, np.nan]
    assert average_precision(clean, segmenter.load()(tile), 0.9) == 1


@pytest.mark.parametrize("shape", [(1, 40), (40, 1), (1, 1), (2, 300)])
@pytest.mark.parametrize("diameter", [None, 70.0])
def test_thin_tiles_keep_their_shape(
    shape: tuple[int, int], diameter: float | None, image_of: ImageOf
) -> None:
    segmenter = plane(image_of, diameter=diameter)
    assert segmenter.load()(np.full(shape, 50, np.uint16)).shape == shape


def test_a_single_plane_is_a_plane(field: samples.Field, image_of: ImageOf) -> None:
    stack = field.image[np.newaxis, :128, :128]
    segmenter = TINY.resolve(image_of(stack), channels=())
    labels = segmenter.load()(stack)
    assert labels.shape == stack.shape
    np.testing.assert_array_equal(labels[0], segmenter.load()(stack[0]))


def test_channels_have_a_range_each(field: samples.Field, image_of: ImageOf) -> None:
    pixels = np.stack([field.image, field.image // 2, np.zeros_like(field.image)])[:, :128, :128]
    segmenter = TINY.resolve(image_of(pixels, axes="cyx"), channels=(0, 1, 2))
    expected = [pytest.approx(tuple(np.percentile(c, (1, 99)))) for c in pixels[:2]]
    assert segmenter.intensity == (*expected, (0, 1))
    assert segmenter.load()(pixels).shape == (128, 128)


def test_a_stack_is_segmented_in_three_dimensions(image_of: ImageOf, random_network: Path) -> None:
    pixels = samples.stack3d().image[8:14, 10:40, 10:41]
    fields = {"do_3D": True, "min_size": 0, "cellprob_threshold": -9.0, "anisotropy": 2.0}
    segmenter = TINY.model_copy(update={"model": str(random_network), **fields})
    segmenter = segmenter.resolve(image_of(pixels), channels=())
    model: Any = segmenter._built().model  # type: ignore[attr-defined]
    expected, *_ = model.eval(
        pixels,
        z_axis=0,
        do_3D=True,
        min_size=0,
        cellprob_threshold=-9,
        anisotropy=2,
        max_size_fraction=1,
        normalize={"normalize": True, "lowhigh": list(segmenter.intensity[0])},  # type: ignore[index]
    )
    assert expected.max() > 0
    np.testing.assert_array_equal(segmenter.load()(pixels), expected)


def test_the_distance_of_planes_is_that_of_the_image(tmp_path: Path) -> None:
    pixels = np.zeros((3, 8, 8), np.uint8)
    path = stores.ome_image(tmp_path / "stack.zarr", pixels, scale=(1.5, 0.5, 0.5))
    image = open_image(path)
    volume = TINY.model_copy(update={"do_3D": True})
    assert volume.resolve(image, channels=()).anisotropy == 3
    given = volume.model_copy(update={"anisotropy": 1.25})
    assert given.resolve(image, channels=()).anisotropy == 1.25


@pytest.mark.parametrize(
    ("shape", "channels", "fields", "message"),
    [
        ((5, 9, 9), (), {}, "stack of 5 planes: .* do_3D=True, or .* stitch=True"),
        ((9, 9), (), {"do_3D": True}, "leave do_3D out"),
        ((4, 1, 9, 9), (0, 1, 2, 3), {}, "at most 3 channels and 4 are selected"),
        ((9, 9), (), {"intensity": ((0, 1), (0, 1))}, "2 ranges and 1 channels"),
        ((9, 9), (), {"sha256": "0" * 64}, "and not 0000"),
        ((9, 9), (), {"model": "no-such-model"}, "knows no model 'no-such-model'"),
    ],
)
def test_what_cannot_work_is_refused_before_any_tile(
    shape: tuple[int, ...],
    channels: tuple[int, ...],
    fields: dict[str, Any],
    message: str,
    image_of: ImageOf,
) -> None:
    image = image_of(np.zeros(shape, np.uint8))
    segmenter = TINY.model_copy(update=fields)
    with pytest.raises(SegmenterError, match=message):
        segmenter.resolve(image, channels=channels)


@pytest.mark.parametrize(
    "fields",
    [
        {"percentiles": (99, 1)},
        {"percentiles": (-1, 99)},
        {"intensity": ((5, 5),)},
        {"intensity": ((0, float("inf")),)},
        {"diameter": 0},
        {"batch_size": 0},
        {"device": "tpu"},
        {"path": "quick"},
        {"diametre": 30},
    ],
)
def test_impossible_parameters_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Cellpose(**fields)


def test_percentiles_that_coincide_give_way_to_the_whole_range(
    image_of: ImageOf, caplog: pytest.LogCaptureFixture
) -> None:
    sparse = np.zeros((100, 100), np.uint16)
    sparse[0, :5] = 700
    assert TINY.resolve(image_of(sparse), channels=()).intensity == ((0, 700),)
    assert "coincide" in caplog.text
    assert TINY.resolve(image_of(sparse * 0 + 9), channels=()).intensity == ((9, 10),)


def test_resolving_fills_every_global_value_and_is_idempotent(image_of: ImageOf) -> None:
    image = image_of(np.arange(400, dtype=np.uint16).reshape(20, 20))
    segmenter = TINY.model_copy(update={"diameter": 60.0}).resolve(image, channels=())
    assert segmenter.niter == 400
    assert segmenter.sha256 == weights.inspect(weights.find("nuclei-tiny")).sha256
    assert segmenter.resolve(image_of(np.ones((9, 9), np.uint8)), channels=()) == segmenter
    assert TypeAdapter(Segmenter).validate_json(segmenter.model_dump_json()) == segmenter
    assert segmenter.provenance()["network"]["cellpose"] == weights.installed()[0]


def test_a_path_is_the_same_file_on_workers_in_other_folders(
    image_of: ImageOf, random_network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(random_network.parent)
    segmenter = plane(image_of, model=random_network.name)
    assert segmenter.model == str(random_network)
    monkeypatch.undo()
    assert segmenter.load()(np.zeros((20, 20), np.uint8)).shape == (20, 20)


def test_an_open_segmenter_cannot_be_loaded() -> None:
    with pytest.raises(SegmenterError, match="resolve"):
        TINY.load()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_cuda_without_a_gpu_is_an_error_on_the_worker(image_of: ImageOf) -> None:
    segmenter = plane(image_of, device="cuda")
    assert segmenter.uses_gpu
    with pytest.raises(SegmenterError, match="PyTorch sees no CUDA GPU"):
        segmenter.load()


def test_another_cellpose_on_the_worker_is_an_error(image_of: ImageOf) -> None:
    segmenter = plane(image_of)
    assert segmenter.network is not None
    planned = segmenter.network.model_copy(update={"cellpose": "4.2.0"})
    segmenter.release()
    with pytest.raises(SegmenterError, match=r"planned with 4\.2\.0"):
        segmenter.model_copy(update={"network": planned}).load()


def test_a_process_builds_a_network_once_until_it_is_released(
    image_of: ImageOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    original = cellpose_adapter.build

    def build(*args: Any, **kwargs: Any) -> Any:
        built.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(cellpose_adapter, "build", build)
    segmenter = plane(image_of)
    segmenter.release()
    tile = np.zeros((16, 16), np.uint8)
    function = segmenter.load()
    function(tile)
    plane(image_of, flow_threshold=0.1, batch_size=1).load()(tile)
    assert len(built) == 1
    segmenter.release()
    function(tile)
    function(tile)
    assert len(built) == 2


def test_another_thread_never_builds_the_small_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    from segment_anything import sam_model_registry as registry

    monkeypatch.setitem(registry, "vit_l", lambda checkpoint=None: "the original")
    original = registry["vit_l"]
    network = weights.inspect(weights.find("nuclei-tiny"))
    elsewhere = []

    def look() -> None:
        elsewhere.append(registry["vit_l"](None))

    def fail_while_building() -> None:
        with _encoder_of(network.encoder):
            assert len(registry["vit_l"](None).image_encoder.blocks) == 5
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
            raise MemoryError

    with pytest.raises(MemoryError):
        fail_while_building()
    assert elsewhere == ["the original"]
    assert registry["vit_l"] is original


def test_the_batch_shrinks_to_one_and_changes_nothing(image_of: ImageOf) -> None:
    segmenter = plane(image_of)
    sizes, digests = [], set()
    shrunk: Cellpose | None = segmenter
    while shrunk is not None:
        sizes.append(shrunk.batch_size)
        digests.add(shrunk.digest())
        shrunk = shrunk.smaller()
    assert sizes == [8, 4, 2, 1]
    assert len(digests) == 1


def test_digest_follows_what_decides_the_labels(image_of: ImageOf) -> None:
    base = plane(image_of)
    assert (
        plane(image_of, device="auto", batch_size=3, percentiles=(2, 98)).digest() == base.digest()
    )
    changes: list[dict[str, Any]] = [
        {"diameter": 20.0},
        {"flow_threshold": 0.0},
        {"cellprob_threshold": -1.0},
        {"min_size": 0},
        {"niter": 100},
        {"intensity": ((0.0, 101.0),)},
        {"use_bfloat16": True},
    ]
    assert len({base.digest(), *(plane(image_of, **c).digest() for c in changes)}) == 8
    assert Cellpose(model="cpsam").digest() != Cellpose(model="cpsam_v2").digest()


@pytest.mark.parametrize(
    ("asked", "device", "gpu", "bits"),
    [
        (None, "auto", True, 16),
        (None, "auto", False, 32),
        (None, "cuda", False, 16),
        (None, "cpu", True, 32),
        (True, "auto", False, 16),
        (False, "auto", True, 32),
    ],
)
def test_gpus_compute_in_16_bits_and_cpus_in_32_unless_told(
    asked: bool | None, device: str, gpu: bool, bits: int
) -> None:
    cellpose = Cellpose(use_bfloat16=asked, device=device)
    assert cellpose.placed_on(gpu=gpu).use_bfloat16 is (bits == 16)


def test_the_diameter_is_the_given_one_or_that_of_the_training(image_of: ImageOf) -> None:
    assert Cellpose().diameter_px is None
    assert plane(image_of, diameter=12.0).diameter_px == 12
    assert plane(image_of).diameter_px == pytest.approx(24.656, abs=1e-3)
