"""The whole evaluation of one tile: pixels in, labels out, on one device."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from cytopave.engine.cellpose_fast import patches as grid
from cytopave.engine.cellpose_fast.answers import Answer, Answers
from cytopave.engine.cellpose_fast.average import average
from cytopave.engine.cellpose_fast.dynamics import follow, meet
from cytopave.engine.cellpose_fast.flow_error import flow_errors
from cytopave.engine.cellpose_fast.holes import BOX, fill_holes
from cytopave.engine.cellpose_fast.objects import Objects
from cytopave.engine.cellpose_fast.patches import SIDE
from cytopave.engine.cellpose_fast.streams import aside, event, to_device, to_host
from cytopave.engine.segmenters.objects import drop_small

if TYPE_CHECKING:
    from collections.abc import Callable

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
        answers: What the network says to it; some may still wait for a batch.
        ready: From when on those are there that wait for none; None on a CPU.
        join: Makes flows of them: ``(3, Y, X)`` float32, y flow, x flow, logit; of a stack
            ``(4, Z, Y, X)``.
        objects: Makes objects of those.
        min_size: Pixels; smaller objects are dropped.
        mark: As for `Evaluator`.
    """

    answers: list[Answer]
    ready: torch.cuda.Event | None
    join: Callable[[list[torch.Tensor]], torch.Tensor]
    objects: Callable[[torch.Tensor], Objects]
    min_size: int
    mark: Callable[[str], None]

    def settle(self, evaluator: Callable[[], Evaluator]) -> Found:
        """Have the device make objects of the answers, and send them to the host.

        On CUDA in a stream of its own: the host has to know some numbers to go on, and waits for
        them while the device is at the network for the next window.

        Args:
            evaluator: Gives the one that completes the answers, where they are not complete.
        """
        maps = self._complete(evaluator)
        with aside(maps, self.ready, *(a.ready for a in self.answers)), torch.no_grad():
            flows = self.join(maps)
            self.mark("average")
            objects = self.objects(flows)
            labels, boxes = to_host(objects.image()), boxes_of(objects)
            return Found(labels, event(flows.device), boxes, self.min_size, self.mark)

    def _complete(self, evaluator: Callable[[], Evaluator]) -> list[torch.Tensor]:
        if any(answer.maps is None for answer in self.answers):
            evaluator().complete(self.answers)
            self.mark("network")
        return [answer.maps for answer in self.answers if answer.maps is not None]


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
        answers: The network and what it says.
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
        self.answers = Answers(network, keep_bytes=keep_bytes)
        self._mark = mark or (lambda stage: None)
        self._lock = threading.Lock()

    @property
    def network(self) -> Network:
        """The network."""
        return self.answers.network

    @property
    def evaluated(self) -> int:
        """Number of patches that the network was asked for."""
        return self.answers.evaluated

    @property
    def reused(self) -> int:
        """Number of patches that were needed and had been asked for by another tile."""
        return self.answers.reused

    def __call__(self, pixels: np.ndarray, place: Place, recipe: Recipe) -> np.ndarray:
        """Labels of a window.

        Args:
            pixels: ``(C, Y, X)``: what `Place.region` holds.
            place: Where in the image that is.
            recipe: Every parameter.

        Returns:
            ``(Y, X)`` int32 labels of `Place.window`.
        """
        return self.begin(pixels, place, recipe).settle(lambda: self).finish()

    def begin(self, pixels: np.ndarray | torch.Tensor, place: Place, recipe: Recipe) -> Begun:
        """Have the network evaluate a window; on CUDA, without waiting for it.

        Patches that do not fill a batch wait for those of the next window.

        Args:
            pixels: As for a call; of a `pinned` tensor the device takes its copy by itself.
            place: Where in the image that is.
            recipe: Every parameter.
        """
        with self._lock, torch.no_grad():
            answers, join = self._ask(pixels, place, recipe)
        return Begun(
            answers=answers,
            ready=event(self.network.device),
            join=join,
            objects=functools.partial(self.objects, recipe=recipe, mark=self._mark),
            min_size=recipe.min_size,
            mark=self._mark,
        )

    def complete(self, answers: list[Answer]) -> None:
        """Evaluate the patches among these that still wait for a batch."""
        with self._lock, torch.no_grad():
            self.answers.complete(answers)

    def flows(
        self, pixels: np.ndarray | torch.Tensor, place: Place, recipe: Recipe
    ) -> torch.Tensor:
        """The network's answer for a window: ``(3, Y, X)`` float32, y flow, x flow, logit."""
        with self._lock, torch.no_grad():
            answers, join = self._ask(pixels, place, recipe)
            self.answers.complete(answers)
            return join([answer.maps for answer in answers if answer.maps is not None])

    def _ask(
        self, pixels: np.ndarray | torch.Tensor, place: Place, recipe: Recipe
    ) -> tuple[list[Answer], Callable[[list[torch.Tensor]], torch.Tensor]]:
        """Ask the network for a window; returns the answers, and what makes flows of them."""
        axes = [grid.axis(n, recipe.rescale) for n in place.shape[-2:]]
        spans = [
            axis.span(a, b)
            for axis, a, b in zip(
                axes, place.window.start[-2:], place.window.stop[-2:], strict=True
            )
        ]
        canvas = self._canvas(torch.as_tensor(pixels), place, axes, spans, recipe)
        canvas = canvas.to(self.network.dtype)
        self._mark("upload")

        def cut(j: int, i: int) -> torch.Tensor:
            y, x = axes[0].starts[j] - spans[0].canvas[0], axes[1].starts[i] - spans[1].canvas[0]
            return canvas[:, y : y + SIDE, x : x + SIDE]

        # all that a patch's answer depends on
        image = (place.image, place.time, place.shape, place.window.start[:-2])
        answers = self.answers.ask(
            {
                (*image, recipe.rescale, recipe.intensity, j, i): functools.partial(cut, j, i)
                for j in spans[0].patches
                for i in spans[1].patches
            }
        )
        self._mark("network")
        return answers, functools.partial(_flows, axes=axes, spans=spans, place=place)

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


def _flows(
    maps: list[torch.Tensor], *, axes: list[grid.Axis], spans: list[grid.Span], place: Place
) -> torch.Tensor:
    """What the patches say of a window, in its own pixels."""
    return _resized(average(maps, axes, spans), axes, spans, place)


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
