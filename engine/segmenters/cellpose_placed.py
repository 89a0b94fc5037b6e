"""The fast path of Cellpose 4: networks evaluated by `cytopave.engine.cellpose_fast`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from cytopave.engine.boxes import Box
from cytopave.engine.cellpose_fast.passes import Volume, Window
from cytopave.engine.cellpose_fast.patches import axis
from cytopave.engine.errors import SegmenterError
from cytopave.engine.segmenters.memory import (
    CONTEXT_BYTES,
    fast_pixel_bytes,
    folded_patch_bytes,
)
from cytopave.engine.segmenters.place import Place

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from cytopave.engine.cellpose_fast.evaluate import Evaluator, Recipe
    from cytopave.engine.segmenters.cellpose_common import Evaluation
    from cytopave.engine.segmenters.cellpose_weights import Network


def obstacle(network: Network) -> str | None:
    """Why the fast path does not apply, or None where it does."""
    if network.generation != 4:
        return "it evaluates networks of Cellpose 4, and this one is of Cellpose 3"
    if network.encoder is None:
        return "it evaluates networks with a SAM encoder, and this one has another"
    return None


def resolved_path(asked: str, network: Network) -> str:
    """``fast`` or ``stock``.

    Raises:
        SegmenterError: The fast path was asked for and does not apply.
    """
    why_not = obstacle(network)
    if asked == "fast" and why_not:
        raise SegmenterError(f"path='fast' does not apply: {why_not}; take path='auto'")
    return "stock" if asked == "stock" or why_not else "fast"


def region(
    window: Box, shape: tuple[int, ...], *, rescale: float, volume: Volume | None = None
) -> Box:
    """What the patches that cover a window see of the image.

    Args:
        window: The window.
        shape: Spatial shape of the image.
        rescale: Factor by which the image is scaled for the network.
        volume: How a stack is evaluated in three dimensions; None for planes.
    """
    if volume is not None:
        return Window.of(window, shape, volume, rescale=rescale).region
    spans = [
        axis(n, rescale).span(a, b).read
        for n, a, b in zip(shape[-2:], window.start[-2:], window.stop[-2:], strict=True)
    ]
    return Box(
        (*window.start[:-2], *(a for a, _ in spans)), (*window.stop[:-2], *(b for _, b in spans))
    )


KEPT_BYTES = 2**29
"""Device memory for patches that neighbouring tiles may need again."""
KEPT_BYTES_VOLUME = 2**30
"""The same for stacks, which share more."""


def device_bytes(network: Network, pixels: int, channels: int, *, itemsize: int, batch: int) -> int:
    """GPU memory that a window of so many pixels needs, in bytes."""
    assert network.encoder is not None
    encoder = network.encoder
    patch = folded_patch_bytes(encoder.num_heads, encoder.embed_dim, encoder.mlp_ratio, itemsize)
    weights = max(network.stored_bytes, network.parameters * itemsize)
    tensors = batch * patch + int(pixels * fast_pixel_bytes(channels, itemsize))
    return CONTEXT_BYTES + weights + KEPT_BYTES + tensors


def build(
    path: Path,
    network: Network,
    *,
    device: str,
    bfloat16: bool,
    batch: int,
    compiled: bool = False,
    volume: bool = False,
) -> Evaluator:
    """Build the network, load its weights and fold its attention.

    Raises:
        SegmenterError: No such device, or the file lacks tensors that the network has.
    """
    from cytopave.engine.cellpose_fast.evaluate import Evaluator
    from cytopave.engine.cellpose_fast.network import Network as FastNetwork
    from cytopave.engine.segmenters.cellpose_adapter import torch_device
    from cytopave.engine.segmenters.cellpose_v4 import CellposeV4

    built = CellposeV4.build(path, network, torch_device(device), bfloat16=bfloat16)
    net = FastNetwork(built.model.net, batch=batch, compiled=compiled)
    if volume:
        from cytopave.engine.cellpose_fast.volume import VolumeEvaluator

        return VolumeEvaluator(net, keep_bytes=KEPT_BYTES_VOLUME)
    return Evaluator(net, keep_bytes=KEPT_BYTES)


def evaluate(
    evaluator: Evaluator, tile: np.ndarray, place: Place, how: Evaluation, *, rescale: float
) -> np.ndarray:
    """Labels of the place's window.

    Args:
        evaluator: What `build` returned.
        tile: Pixels of the place's region, ``([Z], Y, X)``, preceded by C for more than one
            channel; for planes, Z is one.
        place: Where that is.
        how: Every parameter.
        rescale: Factor by which the image is scaled for the network.
    """
    channels = len(how.intensity)
    spatial = tile.shape[-3:] if how.volume else tile.shape[-2:]
    evaluator.network.set_batch(how.batch_size)
    labels = evaluator(tile.reshape(channels, *spatial), place, _recipe(how, rescale))
    return labels.reshape(place.window.shape)


def _recipe(how: Evaluation, rescale: float) -> Recipe:
    from cytopave.engine.cellpose_fast.evaluate import Recipe

    return Recipe(
        rescale=rescale,
        intensity=how.intensity,
        flow_threshold=how.flow_threshold,
        cellprob_threshold=how.cellprob_threshold,
        min_size=how.min_size,
        steps=how.niter,
        volume=Volume(how.anisotropy, how.flow3D_smooth) if how.volume else None,
    )


_alone = itertools.count()


def whole(tile: np.ndarray, channels: int) -> Place:
    """The place of a tile that is an image by itself, unlike any other."""
    box = Box.of(tile.shape if channels == 1 else tile.shape[1:])
    return Place(f"alone {next(_alone)}", 0, box.shape, box, box)
