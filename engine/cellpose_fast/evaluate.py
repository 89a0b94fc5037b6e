"""The whole evaluation of one tile: pixels in, labels out, on one device."""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from cytopave.engine.cellpose_fast.dynamics import follow, meet
from cytopave.engine.cellpose_fast.flow_error import flow_errors
from cytopave.engine.cellpose_fast.holes import BOX, fill_holes
from cytopave.engine.cellpose_fast.objects import Objects
from cytopave.engine.cellpose_fast.planes import PlaneWindow
from cytopave.engine.cellpose_fast.streams import aside, event, to_host
from cytopave.engine.errors import OutOfMemoryError
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


@dataclass(slots=True, weakref_slot=True)
class Begun:
    """A window that the device has got. Keeps no network alive.

    Attributes:
        objects: Makes objects of its flows.
        min_size: Pixels; smaller objects are dropped.
        mark: As for `Evaluator`.
        evaluator: Whose it is, where its last patches wait for a batch to be full.
        flows: ``(3, Y, X)`` float32, y flow, x flow, logit; of a stack ``(4, Z, Y, X)``.
        ready: From when on they are there; None on a CPU.
    """

    objects: Callable[[torch.Tensor], Objects]
    min_size: int
    mark: Callable[[str], None]
    evaluator: weakref.ref[Evaluator] | None = None
    flows: torch.Tensor | None = None
    ready: torch.cuda.Event | None = None

    def complete(self) -> torch.Tensor:
        """The flows, for which no patch waits any more.

        Raises:
            OutOfMemoryError: The network was given up meanwhile.
        """
        if self.flows is None:
            evaluator = self.evaluator() if self.evaluator else None
            if evaluator is None:
                raise OutOfMemoryError("the network was given up before it saw all patches")
            evaluator.complete(self)
        assert self.flows is not None
        return self.flows

    def settle(self) -> Found:
        """Have the device make objects of the flows, and send them to the host.

        On CUDA in a stream of its own: the host has to know some numbers to go on, and waits for
        them while the device is at the network for the next window.

        Raises:
            OutOfMemoryError: As `complete`.
        """
        flows = self.complete()
        with aside(flows, self.ready), torch.no_grad():
            objects = self.objects(flows)
            labels, boxes = to_host(objects.image()), boxes_of(objects)
            return Found(labels, event(flows.device), boxes, self.min_size, self.mark)


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
        self._keep_bytes = keep_bytes
        self._kept: OrderedDict[Hashable, torch.Tensor] = OrderedDict()
        self._waiting: dict[Hashable, torch.Tensor] = {}
        self._open: list[tuple[PlaneWindow, weakref.ref[Begun]]] = []
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

        Its last patches wait for those of the next window, if they fill no batch; `Begun.complete`
        waits no longer.

        Args:
            pixels: As for a call; of a `pinned` tensor the device takes its copy by itself.
            place: Where in the image that is.
            recipe: Every parameter.
        """
        begun = self._begun(recipe)
        window = PlaneWindow.of(place, recipe)
        with self._lock, torch.no_grad():
            canvas = window.canvas(torch.as_tensor(pixels), self.network.device)
            self._mark("upload")
            self._drop_forsaken()
            self._ask(window, canvas)
            self._open.append((window, weakref.ref(begun)))
            self._close()
            while len(self._waiting) >= self.network.batch:
                self._evaluate()
        return begun

    def _begun(self, recipe: Recipe) -> Begun:
        objects = functools.partial(self.objects, recipe=recipe, mark=self._mark)
        return Begun(objects, recipe.min_size, self._mark, weakref.ref(self))

    def complete(self, begun: Begun) -> None:
        """Evaluate what a window's flows still wait for, also if that does not fill a batch."""
        with self._lock, torch.no_grad():
            while begun.flows is None:
                self._evaluate()

    def flows(
        self, pixels: np.ndarray | torch.Tensor, place: Place, recipe: Recipe
    ) -> torch.Tensor:
        """The network's answer for a window: ``(3, Y, X)`` float32, y flow, x flow, logit."""
        return self.begin(pixels, place, recipe).complete()

    def _drop_forsaken(self) -> None:
        """Forget windows that nobody waits for any more, after a failure, and their patches."""
        self._open = [(window, begun) for window, begun in self._open if begun() is not None]
        wanted = {key for window, _ in self._open for key in window.keys.values()}
        self._waiting = {key: patch for key, patch in self._waiting.items() if key in wanted}

    def _ask(self, window: PlaneWindow, canvas: torch.Tensor) -> None:
        """Have the patches of a window wait that are neither known nor waiting already."""
        for at, key in window.keys.items():
            if key in self._kept:
                self._kept.move_to_end(key)
                self.reused += 1
            elif key in self._waiting:
                self.reused += 1
            else:
                self._waiting[key] = window.patch(canvas, at)
                self.evaluated += 1

    def _evaluate(self) -> None:
        """Evaluate one batch of those that wait, the first ones first."""
        keys = list(itertools.islice(self._waiting, self.network.batch))
        answers = self.network(torch.stack([self._waiting[key] for key in keys]))
        for key, answer in zip(keys, answers, strict=True):
            del self._waiting[key]
            self._kept[key] = answer
        self._mark("network")
        self._close()

    def _close(self) -> None:
        """Make the flows of the windows, in their order, of which all patches are known."""
        while self._open and all(key in self._kept for key in self._open[0][0].keys.values()):
            window, waits = self._open.pop(0)
            if (begun := waits()) is not None:
                begun.flows = window.flows(self._kept)
                begun.ready = event(begun.flows.device)
                self._mark("average")
            self._forget()

    def _forget(self) -> None:
        """Let go of patches needed longest ago, but of none that a window waits for."""
        if not self._kept:
            return
        each = next(iter(self._kept.values()))
        excess = len(self._kept) - self._keep_bytes // (each.numel() * each.element_size())
        if excess > 0:
            wanted = {key for window, _ in self._open for key in window.keys.values()}
            free = (key for key in [*self._kept] if key not in wanted)
            for key in itertools.islice(free, excess):
                del self._kept[key]

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


def boxes_of(objects: Objects) -> np.ndarray:
    """The objects that may have holes, of type `BOX`."""
    found = objects.hollow().nonzero().squeeze(1)
    boxes = np.zeros(len(found), BOX)
    boxes["label"] = found.cpu().numpy() + 1
    names = ("top", "left", "rows", "columns")
    for name in names if len(objects.shape) == 2 else (*names, "front", "planes"):
        boxes[name] = getattr(objects, name)[found].cpu().numpy()
    return boxes
