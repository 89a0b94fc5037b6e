"""What every segmenter is: a checked recipe that becomes a function on a worker."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict

from cytopave.engine.segmenters.memory import half_of_the_budget
from cytopave.engine.segmenters.steps import Steps

if TYPE_CHECKING:
    import numpy as np

    from cytopave.engine.boxes import Box
    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.segmenters.place import Place

type LabelFunction = Callable[[np.ndarray], np.ndarray]
"""``f(tile) -> labels``: ``tile`` is ``(C, [Z], Y, X)`` if more than one channel was selected,
else ``([Z], Y, X)``; ``labels`` are integers ``([Z], Y, X)`` with 0 as background."""


class SegmenterBase(BaseModel, ABC):
    """A segmentation method and its parameters: a value that travels between processes.

    The life of a segmenter: `resolve` once, before any tile runs; `digest` and `provenance` of the
    resolved value; `region` of each tile's window; `load` on each worker, and for each tile
    `steps`, or `at`, which is all of them; `release` and `smaller` after the GPU ran out of memory.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @abstractmethod
    def resolve(self, image: Image, *, channels: tuple[int, ...]) -> Self:
        """Check everything that can be checked now, and make every global value explicit.

        Nothing that the result fixes may be derived from a tile later: a value per tile is a seam.
        Resolving a resolved segmenter changes nothing.

        Args:
            image: The image that will be segmented.
            channels: Indices of the selected channels; empty where the image has no channel axis.

        Raises:
            SegmenterError: The method cannot be used, or not on this image.
            MissingExtraError: The package that it needs is not installed.
        """

    @abstractmethod
    def load(self) -> LabelFunction:
        """The function that segments one tile; on the worker, with the model loaded.

        What is expensive to build is kept for the process, so that loading again is cheap.

        Raises:
            SegmenterError: This worker cannot do what was resolved.
        """

    def check_process(self) -> None:
        """Refuse a process that cannot run the method; cheap beside `load`.

        Raises:
            SegmenterError: This process cannot do what was resolved.
        """

    def region(self, window: Box, shape: tuple[int, ...]) -> Box:
        """What has to be read for the labels of a window: the window, unless a method sees further.

        Args:
            window: The window, within the image.
            shape: Spatial shape of the whole image.
        """
        return window

    def at(self, place: Place) -> LabelFunction:
        """The function for one place: from the pixels of its region to the labels of its window.

        The same function everywhere, unless a method's result depends on the place in the image.

        Raises:
            SegmenterError: As `load`.
        """
        return self.load()

    def steps(self, place: Place) -> Steps:
        """What `at` does, in steps of which some need not be done by the thread that computes.

        Loads nothing; the first step on the device does.
        """
        return Steps(begin=lambda pixels: self.at(place)(pixels))

    def release(self) -> None:
        """Drop what `load` keeps, so that its memory can be freed; the next tile loads it again."""

    def smaller(self) -> Self | None:
        """The same result with less memory at a time, or None where there is no such thing."""
        return None

    @property
    def useful_side(self) -> int:
        """Side in pixels below which tiles of a stack compute much that others compute too."""
        return 256

    @property
    def planewise(self) -> bool:
        """Whether each plane of a stack is a tile of its own, and the merge joins sections."""
        return False

    @property
    def diameter_px(self) -> float | None:
        """Typical diameter of an object in pixels, or None where it is unknown."""
        return None

    @property
    def uses_gpu(self) -> bool:
        """Whether the function would compute on a GPU in this process."""
        return False

    @property
    def wants_gpu(self) -> bool:
        """Whether the function computes on a GPU wherever there is one."""
        return self.uses_gpu

    @property
    def needs_gpu(self) -> bool:
        """Whether the function fails where there is no GPU."""
        return self.uses_gpu

    def placed_on(self, *, gpu: bool) -> Self:
        """The same, bound to compute on a GPU or not: a worker that cannot then says so."""
        return self

    def device_bytes(self, window_shape: tuple[int, ...], itemsize: int, n_channels: int) -> int:
        """GPU memory that a tile needs, in bytes; 0 without a GPU.

        Args:
            window_shape: Spatial shape of what a tile sees, ``([Z], Y, X)`` pixels.
            itemsize: Bytes of a stored pixel.
            n_channels: Number of channels that the function gets.
        """
        if not self.wants_gpu:
            return 0
        return half_of_the_budget(window_shape, itemsize, n_channels)

    def host_bytes(self, window_shape: tuple[int, ...], itemsize: int, n_channels: int) -> int:
        """The host's memory that computing a tile takes beside its pixels and labels, in bytes.

        0 where a GPU computes. What is the same for tiles of any size (weights, a batch of patches)
        is not in it: no smaller tile would help. Needed once a worker: tiles are computed one by
        one.

        Args:
            window_shape: Spatial shape of what a tile sees, ``([Z], Y, X)`` pixels.
            itemsize: Bytes of a stored pixel.
            n_channels: Number of channels that the function gets.
        """
        del window_shape, itemsize, n_channels
        return 0

    def megapixels_per_second(self, *, on_gpu: bool) -> float:
        """Rough speed of one worker: decides how many tiles make a task, and nothing else."""
        return 2.0 if on_gpu else 1.0

    @property
    def title(self) -> str:
        """Name for messages about what the method returned."""
        return f"the segmenter '{getattr(self, 'kind', type(self).__name__)}'"

    def without_effect(self) -> set[str]:
        """Fields that change how the labels are computed, and not what they are."""
        return set()

    def digest(self) -> str:
        """SHA-256 of everything that decides the labels, as canonical JSON."""
        values = self.model_dump(mode="json", exclude=self.without_effect())
        text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def provenance(self) -> dict[str, Any]:
        """What a reader of the labels needs to know about how they were made; JSON-able."""
        return {**self.model_dump(mode="json", exclude_none=True), "digest": self.digest()}


def told(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What people are told of a segmenter's `provenance`: not what was read off its weights."""
    return {
        name: value
        for name, value in provenance.items()
        if name != "digest" and (name != "network" or isinstance(value, str))
    }
