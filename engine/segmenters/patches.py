"""What segmenters have in common whose networks see patches on one grid for the whole image."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from cytopave.engine.boxes import Box
from cytopave.engine.patchwise.grid import axis
from cytopave.engine.segmenters.place import Place
from cytopave.engine.segmenters.planes import stitched
from cytopave.engine.segmenters.steps import Steps
from cytopave.engine.segmenters.torch_device import torch_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from torch import Tensor

    from cytopave.engine.patchwise.evaluator import Begun, Labelled, PatchEvaluator
    from cytopave.engine.patchwise.window import Recipe
    from cytopave.engine.segmenters.torch_device import Device


def region(window: Box, shape: tuple[int, ...], *, rescale: float) -> Box:
    """What the patches that cover a window of planes see of the image.

    Args:
        window: The window, ``([Z], Y, X)``.
        shape: Spatial shape of the image.
        rescale: Factor by which the image is scaled for the network.
    """
    spans = [
        axis(n, rescale).span(a, b).read
        for n, a, b in zip(shape[-2:], window.start[-2:], window.stop[-2:], strict=True)
    ]
    return Box(
        (*window.start[:-2], *(a for a, _ in spans)), (*window.stop[:-2], *(b for _, b in spans))
    )


def steps[R: Recipe](
    evaluator: Callable[[], PatchEvaluator[R]],
    place: Place,
    recipe: R,
    *,
    batch: int,
    device: Device,
    planewise: bool,
) -> Steps:
    """The steps from a tile to the labels of its place's window.

    The tile is the pixels of the place's region, ``([Z], Y, X)``, preceded by C for more than one
    channel.

    Args:
        evaluator: Gives the evaluator, its network built, when the device is to begin.
        place: Where the tile is.
        recipe: Every parameter.
        batch: Patches that the network evaluates at a time.
        device: Where it computes.
        planewise: Whether each plane is segmented by itself.
    """
    from cytopave.engine.patchwise.streams import pinned

    at_once = not planewise or len(place.shape) == 2
    pieces = [place] if at_once else list(_each_plane(place))

    def prepare(tile: np.ndarray) -> np.ndarray | Tensor:
        pixels = tile.reshape(len(recipe.intensity), *place.region.shape)
        return pinned(pixels) if torch_device(device).type == "cuda" else pixels

    def begin(pixels: np.ndarray | Tensor) -> list[Begun | Labelled]:
        ready = evaluator()
        ready.network.set_batch(batch)
        if at_once:
            return [ready.begin(pixels, place, recipe)]
        begun = (ready.begin(pixels[:, z], one, recipe) for z, one in enumerate(pieces))
        # of several planes each is settled at once: their maps would fill the card
        return [one if len(pieces) == 1 else one.settle() for one in begun]

    def finish(found: list[Labelled]) -> np.ndarray:
        if at_once:
            return found[0].finish()
        return stitched(one.finish() for one in found)

    return Steps(prepare=prepare, begin=begin, settle=_settle, finish=finish)


def _settle(begun: list[Begun | Labelled]) -> list[Labelled]:
    from cytopave.engine.patchwise.evaluator import Begun

    return [one.settle() if isinstance(one, Begun) else one for one in begun]


def _each_plane(place: Place) -> Iterator[Place]:
    """The planes of a place, of which each is segmented by itself."""
    for z in range(place.window.start[0], place.window.stop[0]):
        region, window = (
            Box((z, *box.start[1:]), (z + 1, *box.stop[1:])) for box in (place.region, place.window)
        )
        yield dataclasses.replace(place, region=region, window=window)


_alone = itertools.count()


def alone(tile: np.ndarray, channels: int) -> Place:
    """The place of a tile that is an image by itself, unlike any other."""
    box = Box.of(tile.shape if channels == 1 else tile.shape[1:])
    return Place(f"alone {next(_alone)}", 0, box.shape, box, box)
