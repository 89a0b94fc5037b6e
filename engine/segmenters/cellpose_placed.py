"""The fast path of Cellpose 4: networks evaluated by `cytopave.engine.cellpose_fast`."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

from cytopave.engine.boxes import Box
from cytopave.engine.cellpose_fast.passes import Volume, Window
from cytopave.engine.cellpose_fast.patches import axis
from cytopave.engine.errors import SegmenterError
from cytopave.engine.segmenters.cellpose_memory import KEPT_BYTES, KEPT_BYTES_VOLUME
from cytopave.engine.segmenters.place import Place
from cytopave.engine.segmenters.planes import stitched
from cytopave.engine.segmenters.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy as np
    from torch import Tensor

    from cytopave.engine.cellpose_fast.evaluate import Begun, Evaluator, Found, Recipe
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

        return VolumeEvaluator(net, keep_bytes=_kept_of_stacks(net.device))
    return Evaluator(net, keep_bytes=KEPT_BYTES)


def _kept_of_stacks(device: Any) -> int:
    """Device memory for patches of stacks: more where more is within what plans leave free."""
    import torch

    if device.type != "cuda":
        return KEPT_BYTES_VOLUME
    room = torch.cuda.get_device_properties(device).total_memory // 24
    return int(min(4 * KEPT_BYTES_VOLUME, max(KEPT_BYTES_VOLUME // 2, room)))


def steps(
    evaluator: Callable[[], Evaluator],
    place: Place,
    how: Evaluation,
    *,
    rescale: float,
    device: str,
) -> Steps:
    """The steps from a tile to the labels of its place's window.

    The tile is the pixels of the place's region, ``([Z], Y, X)``, preceded by C for more than one
    channel.

    Args:
        evaluator: Gives what `build` returned, when the device is to begin.
        place: Where the tile is.
        how: Every parameter.
        rescale: Factor by which the image is scaled for the network.
        device: Where the evaluator computes.
    """
    from cytopave.engine.cellpose_fast.evaluate import Begun
    from cytopave.engine.cellpose_fast.streams import pinned
    from cytopave.engine.segmenters.cellpose_adapter import torch_device

    recipe = _recipe(how, rescale)
    at_once = how.volume or len(place.shape) == 2
    pieces = [place] if at_once else list(_each_plane(place))

    def prepare(tile: np.ndarray) -> np.ndarray | Tensor:
        pixels = tile.reshape(len(how.intensity), *place.region.shape)
        return pinned(pixels) if torch_device(device).type == "cuda" else pixels

    def begin(pixels: np.ndarray | Tensor) -> list[Begun | Found]:
        ready = evaluator()
        ready.network.set_batch(how.batch_size)
        if at_once:
            return [ready.begin(pixels, place, recipe)]
        begun = (ready.begin(pixels[:, z], one, recipe) for z, one in enumerate(pieces))
        # of several planes each is settled at once: their flows would fill the card
        return [one if len(pieces) == 1 else one.settle() for one in begun]

    def settle(begun: list[Begun | Found]) -> list[Found]:
        return [one.settle() if isinstance(one, Begun) else one for one in begun]

    def finish(found: list[Found]) -> np.ndarray:
        if at_once:
            return found[0].finish()
        return stitched(one.finish() for one in found)

    return Steps(prepare=prepare, begin=begin, settle=settle, finish=finish)


def _each_plane(place: Place) -> Iterator[Place]:
    """The planes of a place, of which each is segmented by itself."""
    for z in range(place.window.start[0], place.window.stop[0]):
        region, window = (
            Box((z, *box.start[1:]), (z + 1, *box.stop[1:])) for box in (place.region, place.window)
        )
        yield dataclasses.replace(place, region=region, window=window)


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
