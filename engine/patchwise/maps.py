"""Labels from maps by any function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from cytopave.engine.errors import LabelError
from cytopave.engine.patchwise.evaluator import PatchEvaluator
from cytopave.engine.patchwise.network import named
from cytopave.engine.patchwise.streams import event, to_host
from cytopave.engine.patchwise.window import Recipe
from cytopave.engine.segmenters.checks import checked
from cytopave.engine.segmenters.objects import drop_small

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np


@dataclass(frozen=True, slots=True)
class MapsRecipe(Recipe):
    """How maps become labels.

    Attributes:
        name: What messages call the function.
        labels: From maps ``(maps, Y, X)`` to integer labels ``(Y, X)``.
        kwargs: Its further arguments.
        min_size: Pixels; smaller objects are dropped.
    """

    name: str
    labels: Callable[..., Any]
    kwargs: Mapping[str, Any]
    min_size: int


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a window, maybe still on their way to the host.

    Attributes:
        labels: What the function returned.
        shape: ``(Y, X)`` pixels of the window.
        ready: From when on they are there; None: now.
        recipe: How they were made.
    """

    labels: Any
    shape: tuple[int, ...]
    ready: torch.cuda.Event | None
    recipe: MapsRecipe

    def finish(self) -> np.ndarray:
        """The labels ``(Y, X)``, checked and without small objects: on the host, in any thread.

        Raises:
            LabelError: They are no label image of the window.
        """
        if self.ready is not None:
            self.ready.synchronize()
        array = self.labels.numpy() if isinstance(self.labels, torch.Tensor) else self.labels
        labels, _ = checked(array, self.shape, f"the function {self.recipe.name}")
        return drop_small(labels, self.recipe.min_size)


class MapsEvaluator(PatchEvaluator[MapsRecipe]):
    """Any network and any function that makes labels of its maps."""

    @classmethod
    def read(cls, maps: torch.Tensor, recipe: MapsRecipe, mark: Callable[[str], None]) -> Labels:
        """Labels of a window, on their way to the host.

        Raises:
            LabelError: The maps are no numbers.
        """
        if bool(maps.isnan().any()):
            raise LabelError(
                "the network answered with maps that hold NaN: see to its weights, or to what it "
                "makes of black pixels"
            )
        with named(recipe.name):
            labels = recipe.labels(maps, **recipe.kwargs)
        mark("labels")
        shape, ready = tuple(maps.shape[1:]), None
        if isinstance(labels, torch.Tensor):
            labels, ready = to_host(labels), event(labels.device)
        return Labels(labels, shape, ready, recipe)
