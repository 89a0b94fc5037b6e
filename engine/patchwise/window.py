"""A window of a plane: the patches that cover it, and the maps that are made of their answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from cytopave.engine.patchwise import grid
from cytopave.engine.patchwise.average import average
from cytopave.engine.patchwise.grid import SIDE
from cytopave.engine.patchwise.streams import to_device

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from cytopave.engine.segmenters.place import Place

type At = tuple[int, int]
"""A patch, by its numbers in the grid of the whole image along Y and X."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the patches' pixels depend on beside the image.

    Attributes:
        rescale: Factor by which the image is scaled for the network.
        intensity: Per channel, what becomes 0 and what becomes 1.
    """

    rescale: float
    intensity: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class PlaneWindow:
    """What a window needs of the grid of patches.

    Attributes:
        place: Where the window is.
        recipe: Every parameter.
        axes: The grid of the whole image, along Y and X.
        spans: The window's part of each.
        keys: What the answer to each of its patches depends on, in raster order.
    """

    place: Place
    recipe: Recipe
    axes: tuple[grid.Axis, ...]
    spans: tuple[grid.Span, ...]
    keys: Mapping[At, Hashable]

    @classmethod
    def of(cls, place: Place, recipe: Recipe) -> PlaneWindow:
        """The window of a place."""
        axes = tuple(grid.axis(n, recipe.rescale) for n in place.shape[-2:])
        bounds = zip(axes, place.window.start[-2:], place.window.stop[-2:], strict=True)
        spans = tuple(axis.span(a, b) for axis, a, b in bounds)
        plane = (place.image, place.time, place.shape, place.window.start[:-2])
        how = (recipe.rescale, recipe.intensity)
        keys = {(j, i): (*plane, *how, j, i) for j in spans[0].patches for i in spans[1].patches}
        return cls(place, recipe, axes, spans, keys)

    def canvas(self, pixels: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Network pixels of all patches, ``(C, Y, X)`` float32, black outside the image.

        Args:
            pixels: ``(C, Y, X)``: what the place's region holds.
            device: Where to.
        """
        spans = self.spans
        offsets = self.place.region.start[-2:]
        cut = tuple(
            slice(s.read[0] - o, s.read[1] - o) for s, o in zip(spans, offsets, strict=True)
        )
        image = pixels[:, *cut].to(device, non_blocking=True)
        # a copy always: the tile may be wanted again, after memory ran out
        image = image.to(torch.float32, copy=True)
        for channel, (low, high) in zip(image, self.recipe.intensity, strict=True):
            if pixels.is_floating_point():
                channel.nan_to_num_(nan=low, neginf=low, posinf=high)
            channel.sub_(low).div_(high - low)
        for dim, (axis, span) in enumerate(zip(self.axes, spans, strict=True), 1):
            if axis.resized:
                at = grid.linear(axis.length, axis.scaled, *span.inside)
                image = _interpolated(image, at, dim, span.read[0])
        before = [s.inside[0] - s.canvas[0] for s in spans]
        after = [s.canvas[1] - s.inside[1] for s in spans]
        return torch.nn.functional.pad(image, (before[1], after[1], before[0], after[0]))

    def patch(self, canvas: torch.Tensor, at: At) -> torch.Tensor:
        """The network pixels of one patch, ``(C, SIDE, SIDE)``, within the canvas."""
        y, x = (
            axis.starts[k] - span.canvas[0]
            for axis, span, k in zip(self.axes, self.spans, at, strict=True)
        )
        return canvas[:, y : y + SIDE, x : x + SIDE]

    def maps(self, answers: Mapping[Hashable, torch.Tensor]) -> torch.Tensor:
        """The mean answer at the window's own pixels, ``(maps, Y, X)`` float32.

        Args:
            answers: What the network said, by `keys`.
        """
        maps = average([answers[key] for key in self.keys.values()], self.axes, self.spans)
        start, stop = self.place.window.start[-2:], self.place.window.stop[-2:]
        for dim, (axis, span, window) in enumerate(
            zip(self.axes, self.spans, zip(start, stop, strict=True), strict=True), 1
        ):
            if axis.resized:
                at = grid.linear(axis.scaled, axis.length, *window)
                maps = _interpolated(maps, at, dim, span.wanted[0])
        return maps


def _interpolated(image: torch.Tensor, at: grid.Sampling, dim: int, offset: int) -> torch.Tensor:
    """Resize one axis of ``(C, Y, X)``, of which sample ``offset`` comes first."""
    lower, upper, weight = (
        to_device(v, image.device) for v in (at.lower - offset, at.upper - offset, at.weight)
    )
    weight = weight[:, None] if dim == 1 else weight
    below, above = image.index_select(dim, lower), image.index_select(dim, upper)
    return below * (1 - weight) + above * weight
