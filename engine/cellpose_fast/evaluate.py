"""The whole evaluation of one tile: pixels in, labels out, on one device."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from cytopave.engine.cellpose_fast import patches as grid
from cytopave.engine.cellpose_fast.dynamics import follow, meet
from cytopave.engine.cellpose_fast.flow_error import flow_errors
from cytopave.engine.cellpose_fast.holes import BOX, fill_holes
from cytopave.engine.cellpose_fast.objects import Objects
from cytopave.engine.cellpose_fast.patches import SIDE
from cytopave.engine.cellpose_fast.streams import aside, event, to_device, to_host
from cytopave.engine.segmenters.objects import drop_small

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from cytopave.engine.cellpose_fast.network import Network
    from cytopave.engine.cellpose_fast.passes import Volume
    from cytopave.engine.segmenters.place import Place

FLOW_SCALE = 5.0
"""The network answers with flows times this."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Every number that the labels depend on; none of them is of a tile.

    Attributes:
        rescale: Factor by which the image is scaled for the network.
        intensity: Per channel, what becomes 0 and what becomes 1.
        flow_threshold: Largest flow error of an object; 0 skips the check.
        cellprob_threshold: Logit above which a pixel is in a cell.
        min_size: Pixels; smaller objects are dropped.
        steps: Steps along the flows.
        volume: How a stack is evaluated in three dimensions; None for planes.
    """

    rescale: float
    intensity: tuple[tuple[float, float], ...]
    flow_threshold: float
    cellprob_threshold: float
    min_size: int
    steps: int
    volume: Volume | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """A window that the device has got. Holds no network.

    Attributes:
        flows: ``(3, Y, X)`` float32, y flow, x flow, logit; of a stack ``(4, Z, Y, X)``.
        ready: From when on they are there; None on a CPU.
        objects: Makes objects of them.
        min_size: Pixels; smaller objects are dropped.
        mark: As for `Evaluator`.
    """

    flows: torch.Tensor
    ready: torch.cuda.Event | None
    objects: Callable[[torch.Tensor], Objects]
    min_size: int
    mark: Callable[[str], None]

    def settle(self) -> Found:
        """Have the device make objects of the flows, and send them to the host.

        On CUDA in a stream of its own: the host has to know some numbers to go on, and waits for
        them while the device is at the network for the next window.
        """
        with aside(self.flows, self.ready), torch.no_grad():
            objects = self.objects(self.flows)
            labels, boxes = to_host(objects.image()), boxes_of(objects)
            return Found(labels, event(self.flows.device), boxes, self.min_size, self.mark)


@dataclass(frozen=True, slots=True)
class Found:
    """The objects of a window, on their way to the host.

    Attributes:
        labels: ``(Y, X)`` int32.
        ready: From when on they are there; None on a CPU.
        boxes: The objects that may have holes, of type `BOX`.
        min_size: Pixels; smaller objects are dropped.
        mark: As for `Evaluator`.
    """

    labels: torch.Tensor
    ready: torch.cuda.Event | None
    boxes: np.ndarray
    min_size: int
    mark: Callable[[str], None]

    def finish(self) -> np.ndarray:
        """The labels, with holes filled: on the host, in any thread."""
        if self.ready is not None:
            self.ready.synchronize()
        labels: np.ndarray = self.labels.numpy()
        self.mark("download")
        if fill_holes(labels, self.boxes):
            labels = drop_small(labels, self.min_size)
        self.mark("holes")
        return labels


class Evaluator:
    """A network with the patches that it has evaluated last: neighbouring tiles share some.

    Attributes:
        evaluated: Number of patches evaluated so far.
        reused: Number of patches that were needed and had been evaluated for another tile.
    """

    def __init__(
        self,
        network: Network,
        *,
        keep_bytes: int = 2**29,
        mark: Callable[[str], None] | None = None,
    ) -> None:
        """Make an evaluator.

        Args:
            network: The network.
            keep_bytes: Device memory for patches that another tile may need again.
            mark: Called with a stage's name when the stage has been submitted.
        """
        self.network = network
        self.evaluated = 0
        self.reused = 0
        self._mark = mark or (lambda stage: None)
        self._kept: OrderedDict[Hashable, torch.Tensor] = OrderedDict()
        self._keep_bytes = keep_bytes
        self._lock = threading.Lock()

    def __call__(self, pixels: np.ndarray, place: Place, recipe: Recipe) -> np.ndarray:
        """Labels of a window.

        Args:
            pixels: ``(C, Y, X)``: what `Place.region` holds.
            place: Where in the image that is.
            recipe: Every parameter.

        Returns:
            ``(Y, X)`` int32 labels of `Place.window`.
        """
        return self.begin(pixels, place, recipe).settle().finish()

    def begin(self, pixels: np.ndarray | torch.Tensor, place: Place, recipe: Recipe) -> Begun:
        """Have the device compute the flows of a window; on CUDA, without waiting for them.

        Args:
            pixels: As for a call; of a `pinned` tensor the device takes its copy by itself.
            place: Where in the image that is.
            recipe: Every parameter.
        """
        with self._lock, torch.no_grad():
            flows = self.flows(pixels, place, recipe)
        objects = functools.partial(self.objects, recipe=recipe, mark=self._mark)
        return Begun(flows, event(flows.device), objects, recipe.min_size, self._mark)

    def flows(
        self, pixels: np.ndarray | torch.Tensor, place: Place, recipe: Recipe
    ) -> torch.Tensor:
        """The network's answer for a window: ``(3, Y, X)`` float32, y flow, x flow, logit."""
        axes = [grid.axis(n, recipe.rescale) for n in place.shape[-2:]]
        spans = [
            axis.span(a, b)
            for axis, a, b in zip(
                axes, place.window.start[-2:], place.window.stop[-2:], strict=True
            )
        ]
        canvas = self._canvas(torch.as_tensor(pixels), place, axes, spans, recipe)
        self._mark("upload")
        answers = self._answers(canvas, place, axes, spans, recipe)
        self._mark("network")
        flows = _average(answers, axes, spans)
        flows = _resized(flows, axes, spans, place)
        self._mark("average")
        return flows

    def _canvas(
        self,
        pixels: torch.Tensor,
        place: Place,
        axes: list[grid.Axis],
        spans: list[grid.Span],
        recipe: Recipe,
    ) -> torch.Tensor:
        """Network pixels of all patches, ``(C, Y, X)`` float32, black outside the image."""
        offsets = place.region.start[-2:]
        cut = tuple(
            slice(s.read[0] - o, s.read[1] - o) for s, o in zip(spans, offsets, strict=True)
        )
        image = pixels[:, *cut].to(self.network.device, non_blocking=True)
        # a copy always: the tile may be wanted again, after memory ran out
        image = image.to(torch.float32, copy=True)
        for channel, (low, high) in zip(image, recipe.intensity, strict=True):
            if pixels.is_floating_point():
                channel.nan_to_num_(nan=low, neginf=low, posinf=high)
            channel.sub_(low).div_(high - low)
        for dim, (axis, span) in enumerate(zip(axes, spans, strict=True), 1):
            if axis.resized:
                at = grid.linear(axis.length, axis.scaled, *span.inside)
                image = _interpolated(image, at, dim, span.read[0])
        before = [s.inside[0] - s.canvas[0] for s in spans]
        after = [s.canvas[1] - s.inside[1] for s in spans]
        return torch.nn.functional.pad(image, (before[1], after[1], before[0], after[0]))

    def _answers(
        self,
        canvas: torch.Tensor,
        place: Place,
        axes: list[grid.Axis],
        spans: list[grid.Span],
        recipe: Recipe,
    ) -> dict[tuple[int, int], torch.Tensor]:
        """What the network says to each patch of the window, in raster order."""
        needed = [(j, i) for j in spans[0].patches for i in spans[1].patches]
        keys: dict[tuple[int, int], Hashable] = {
            at: (
                *(place.image, place.time, place.shape, place.window.start[:-2]),
                *(recipe.rescale, recipe.intensity, *at),
            )
            for at in needed
        }
        new = [at for at in needed if keys[at] not in self._kept]
        if new:
            corners = [
                tuple(
                    axis.starts[k] - span.canvas[0]
                    for axis, span, k in zip(axes, spans, at, strict=True)
                )
                for at in new
            ]
            batch = torch.stack([canvas[:, y : y + SIDE, x : x + SIDE] for y, x in corners])
            for at, answer in zip(new, self.network(batch), strict=True):
                self._kept[keys[at]] = answer
        self.evaluated += len(new)
        self.reused += len(needed) - len(new)
        answers = {at: self._kept[keys[at]] for at in needed}
        for at in needed:
            self._kept.move_to_end(keys[at])
        self._forget()
        return answers

    def _forget(self) -> None:
        if not self._kept:
            return
        each = next(iter(self._kept.values()))
        most = self._keep_bytes // (each.numel() * each.element_size())
        while len(self._kept) > most:
            self._kept.popitem(last=False)

    @staticmethod
    def objects(flows: torch.Tensor, recipe: Recipe, mark: Callable[[str], None]) -> Objects:
        """Objects of a window from the network's answer ``(3, Y, X)``."""
        shape = (flows.shape[1], flows.shape[2])
        inside = flows[2] > recipe.cellprob_threshold
        foreground = inside.flatten().nonzero().squeeze(1)
        steps = flows[:2] / FLOW_SCALE
        ends = follow(steps * inside, foreground, recipe.steps)
        mark("follow")
        numbers, count = meet(ends, shape)
        objects = Objects.numbered(foreground, numbers, count, recipe.min_size, shape)
        mark("meet")
        if recipe.flow_threshold > 0:
            objects = objects.where(flow_errors(steps, objects) <= recipe.flow_threshold)
        mark("check")
        return objects


def _interpolated(image: torch.Tensor, at: grid.Sampling, dim: int, offset: int) -> torch.Tensor:
    """Resize one axis of ``(C, Y, X)``, of which sample ``offset`` comes first."""
    lower, upper, weight = (
        to_device(v, image.device) for v in (at.lower - offset, at.upper - offset, at.weight)
    )
    weight = weight[:, None] if dim == 1 else weight
    below, above = image.index_select(dim, lower), image.index_select(dim, upper)
    return below * (1 - weight) + above * weight


def _average(
    answers: dict[tuple[int, int], torch.Tensor], axes: list[grid.Axis], spans: list[grid.Span]
) -> torch.Tensor:
    """Tapered mean of the patches over the wanted network pixels, ``(3, Y, X)`` float32.

    Patches are added in raster order, one after the other: a sum with an order.
    """
    device = next(iter(answers.values())).device
    taper = to_device(grid.taper(), device)
    weight = taper[:, None] * taper
    (top, bottom), (left, right) = (s.wanted for s in spans)
    total = torch.zeros((3, bottom - top, right - left), device=device)
    for (j, i), answer in answers.items():
        y, x = axes[0].starts[j], axes[1].starts[i]
        rows = slice(max(0, top - y), min(SIDE, bottom - y))
        columns = slice(max(0, left - x), min(SIDE, right - x))
        target = total[:, max(y, top) - top : min(y + SIDE, bottom) - top]
        target = target[:, :, max(x, left) - left : min(x + SIDE, right) - left]
        target += answer[:, rows, columns].to(torch.float32) * weight[rows, columns]
    sums = [
        to_device(axis.weights(*span.wanted), device)
        for axis, span in zip(axes, spans, strict=True)
    ]
    return total / (sums[0][:, None] * sums[1])


def _resized(
    flows: torch.Tensor, axes: list[grid.Axis], spans: list[grid.Span], place: Place
) -> torch.Tensor:
    """From network pixels back to the window's own."""
    bounds = zip(place.window.start[-2:], place.window.stop[-2:], strict=True)
    for dim, (axis, span, window) in enumerate(zip(axes, spans, bounds, strict=True), 1):
        if axis.resized:
            at = grid.linear(axis.scaled, axis.length, *window)
            flows = _interpolated(flows, at, dim, span.wanted[0])
    return flows


def boxes_of(objects: Objects) -> np.ndarray:
    """The objects that may have holes, of type `BOX`."""
    found = objects.hollow().nonzero().squeeze(1)
    boxes = np.zeros(len(found), BOX)
    boxes["label"] = found.cpu().numpy() + 1
    names = ("top", "left", "rows", "columns")
    for name in names if len(objects.shape) == 2 else (*names, "front", "planes"):
        boxes[name] = getattr(objects, name)[found].cpu().numpy()
    return boxes
