"""Objects from the flows of a window, on one device: what is Cellpose's own of the evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.cellpose_fast.dynamics import follow, meet
from cytopave.engine.cellpose_fast.flow_error import flow_errors
from cytopave.engine.cellpose_fast.holes import BOX, fill_holes
from cytopave.engine.cellpose_fast.objects import Objects
from cytopave.engine.patchwise.evaluator import PatchEvaluator
from cytopave.engine.patchwise.streams import event, to_host
from cytopave.engine.patchwise.window import Recipe as PatchRecipe
from cytopave.engine.segmenters.objects import drop_small

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from cytopave.engine.cellpose_fast.passes import Volume

FLOW_SCALE = 5.0
"""The network answers with flows times this."""


@dataclass(frozen=True, slots=True)
class Recipe(PatchRecipe):
    """Every number that the labels depend on; none of them is of a tile.

    Attributes:
        flow_threshold: Largest flow error of an object; 0 skips the check.
        cellprob_threshold: Logit above which a pixel is in a cell.
        min_size: Pixels; smaller objects are dropped.
        steps: Steps along the flows.
        volume: How a stack is evaluated in three dimensions; None for planes.
    """

    flow_threshold: float
    cellprob_threshold: float
    min_size: int
    steps: int
    volume: Volume | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The objects of a window, on their way to the host.

    Attributes:
        labels: ``(Y, X)`` int32.
        ready: From when on they are there; None on a CPU.
        boxes: The objects that may have holes, of type `BOX`.
        min_size: Pixels; smaller objects are dropped.
        mark: As for `PatchEvaluator`.
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


class Evaluator(PatchEvaluator[Recipe]):
    """Cellpose 4: maps are the flow along Y, that along X, and the logit of being in a cell."""

    @classmethod
    def read(cls, maps: torch.Tensor, recipe: Recipe, mark: Callable[[str], None]) -> Found:
        """Objects of a window, on their way to the host."""
        objects = cls.objects(maps, recipe, mark)
        labels, boxes = to_host(objects.image()), boxes_of(objects)
        return Found(labels, event(maps.device), boxes, recipe.min_size, mark)

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
