"""StarDist's networks: their folders, what they are, and how one is built and called."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from cytopave.engine.errors import MissingExtraError, SegmenterError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

logger = logging.getLogger(__name__)

_WEIGHTS = ("*.h5", "*.hdf5")


class StarNetwork(BaseModel):
    """What a network is.

    Attributes:
        stardist: Version of StarDist that it was inspected with.
        sha256: Hash of its configuration, weights and thresholds.
        axes: Axes of its input: ``YXC`` or ``ZYXC``.
        channels: Number of channels of its input.
        step: Pixels per spatial axis of which a region's begin has to be a multiple, for the same
            pixels to be pooled together.
        reach: How far a pixel's answer depends on pixels, per spatial axis.
        prob_thresh: Its own threshold of object probability.
        nms_thresh: Its own threshold of overlap.
    """

    model_config = ConfigDict(frozen=True)

    stardist: str
    sha256: str
    axes: str
    channels: int
    step: tuple[int, ...]
    reach: tuple[int, ...]
    prob_thresh: float
    nms_thresh: float


def find_network(model: str) -> Path:
    """The folder of a network, made absolute.

    Raises:
        SegmenterError: It is not there, or lacks its configuration or weights.
    """
    folder = Path(model).expanduser().absolute()
    if not folder.is_dir():
        raise SegmenterError(
            f"there is no folder {folder} with a StarDist network: name the folder that holds "
            "config.json and the weights; StarDist2D.from_pretrained(NAME) makes one, once, on a "
            "machine with internet access"
        )
    if not (folder / "config.json").is_file() or not _weights_of(folder):
        raise SegmenterError(
            f"{folder} holds no StarDist network: config.json and weights (weights_best.h5) have "
            "to be in it"
        )
    return folder


def content_hash(folder: Path) -> str:
    """SHA-256 of a network's configuration, weights and thresholds.

    The weights are told by name, since StarDist takes those with "best" in it first.
    """
    digest = hashlib.sha256()
    names = ("config.json", "thresholds.json")
    files = [folder / n for n in names if (folder / n).is_file()] + _weights_of(folder)
    for path in files:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def build_network(folder: Path, *, gpu: bool | None) -> Any:
    """The network with its weights: StarDist's own model.

    Args:
        folder: From `find_network`.
        gpu: Whether it has to be on a GPU (True), must not (False), or is where there is one.

    Raises:
        MissingExtraError: StarDist or TensorFlow is not installed.
        SegmenterError: TensorFlow sees no GPU and one was asked for, or the network is damaged.
    """
    models = _import_models(gpu=gpu)
    axes = _axes_of(folder)
    kind = models.StarDist3D if "Z" in axes else models.StarDist2D
    try:
        with _quiet():
            return kind(None, name=folder.name, basedir=str(folder.parent))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SegmenterError(
            f"the StarDist network in {folder} cannot be loaded ({error}): save or download it "
            "again"
        ) from error


def inspect_network(folder: Path, model: Any) -> StarNetwork:
    """What a network is.

    Args:
        folder: Where it lies.
        model: The built network.
    """
    from importlib.metadata import version

    axes = str(model.config.axes)
    spatial = axes.replace("C", "")
    with _quiet():
        reach = model._axes_tile_overlap(spatial)
    return StarNetwork(
        stardist=version("stardist"),
        sha256=content_hash(folder),
        axes=axes,
        channels=int(model.config.n_channel_in),
        step=tuple(int(n) for n in model._axes_div_by(spatial)),
        reach=tuple(int(n) for n in reach),
        prob_thresh=float(model.thresholds.prob),
        nms_thresh=float(model.thresholds.nms),
    )


def predict(
    model: Any, pixels: np.ndarray, *, prob_thresh: float, nms_thresh: float, pieces: int
) -> np.ndarray:
    """Labels of an image whose intensities are scaled already.

    Args:
        model: The built network.
        pixels: ``([Z], Y, X, C)`` float32.
        prob_thresh: Least probability of an object.
        nms_thresh: Overlap from which on two objects are one.
        pieces: Along Y and X, into how many overlapping pieces the network's input is cut.
    """
    axes = str(model.config.axes)
    cut = tuple(pieces if a in "YX" else 1 for a in axes)
    with _quiet():
        labels, _ = model.predict_instances(
            pixels,
            axes=axes,
            prob_thresh=prob_thresh,
            nms_thresh=nms_thresh,
            n_tiles=cut if pieces > 1 else None,
            show_tile_progress=False,
        )
    return labels  # type: ignore[no-any-return]


def _weights_of(folder: Path) -> list[Path]:
    return sorted(path for pattern in _WEIGHTS for path in folder.glob(pattern))


def _axes_of(folder: Path) -> str:
    try:
        return str(json.loads((folder / "config.json").read_bytes())["axes"])
    except (ValueError, KeyError, TypeError) as error:
        raise SegmenterError(
            f"{folder}/config.json is not the configuration of a StarDist network ({error})"
        ) from error


def _import_models(*, gpu: bool | None) -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # information and warnings left out
    try:
        import tensorflow
        from stardist import models
    except ImportError as error:
        raise MissingExtraError(
            f'StarDist cannot be imported ({error}): pip install "cytopave[stardist]"'
        ) from error
    cards = tensorflow.config.list_physical_devices("GPU")
    if gpu is False:
        tensorflow.config.set_visible_devices([], "GPU")
    elif gpu and not cards:
        raise SegmenterError(
            "device='cuda' was asked for and TensorFlow sees no GPU on this worker: install "
            "tensorflow[and-cuda] there, or choose device='cpu'"
        )
    else:
        for card in cards:
            # Otherwise TensorFlow takes all of the memory at once, whoever else needs some.
            with contextlib.suppress(RuntimeError):  # it is in use already
                tensorflow.config.experimental.set_memory_growth(card, True)  # noqa: FBT003
    return models


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what StarDist prints off the terminal; it goes to the log."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        yield
    for line in filter(None, map(str.strip, said.getvalue().splitlines())):
        logger.debug("%s", line)
