"""StarDist, in two dimensions and in three, on tiles that agree.

The network is convolutional: what it says of a pixel depends on the pixels within its reach, and on
where its poolings begin. A tile is therefore read as far beyond its window as the network reaches,
from a multiple of the poolings' step on; then all tiles have the same probabilities and distances
in what they share. Which of several overlapping candidates is kept (non-maximum suppression) is
decided among those that a tile knows; that may differ for objects that a window cuts, and through
chains of overlapping candidates, which are short. Intensities are scaled by percentiles of the
whole image.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from cytopave.engine.boxes import Box
from cytopave.engine.errors import SegmenterError
from cytopave.engine.segmenters.base import LabelFunction, SegmenterBase
from cytopave.engine.segmenters.intensities import Percentiles, Ranges, intensity_ranges
from cytopave.engine.segmenters.kept import Kept
from cytopave.engine.segmenters.memory import CONTEXT_BYTES
from cytopave.engine.segmenters.objects import drop_small
from cytopave.engine.segmenters.stardist_network import (
    StarNetwork,
    build_network,
    content_hash,
    find_network,
    inspect_network,
    predict,
)

if TYPE_CHECKING:
    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.segmenters.place import Place

_MOST_PIECES = 8
_BYTES_PER_PIXEL = 1200
"""Of the network's widest layers in float32: 128 features at full resolution, twice, and rays."""

Share = Annotated[float, Field(gt=0, lt=1)]

_networks: Kept[Any] = Kept()


class StarDist(SegmenterBase):
    """Star-convex objects, such as nuclei, by a StarDist network of yours."""

    kind: Literal["stardist"] = "stardist"
    model: Annotated[
        str,
        Field(min_length=1, description="Folder of the network: config.json and its weights."),
    ]
    prob_thresh: Annotated[
        Share | None,
        Field(description="Least probability of an object. Empty: the network's own."),
    ] = None
    nms_thresh: Annotated[
        Share | None,
        Field(description="Overlap from which on two are one. Empty: the network's own."),
    ] = None
    percentiles: Annotated[
        Percentiles,
        Field(description="Percentiles of the whole image that become 0 and 1."),
    ] = (1.0, 99.8)
    intensity: Annotated[
        Ranges | None,
        Field(
            description="What becomes 0 and 1, per selected channel. Empty: the percentiles of "
            "the whole image, taken once."
        ),
    ] = None
    min_size: Annotated[
        NonNegativeInt, Field(description="Objects of fewer pixels are dropped.")
    ] = 0
    diameter: Annotated[
        PositiveFloat | None,
        Field(description="Typical diameter of an object in pixels; sizes an automatic halo."),
    ] = None
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Field(
            description="'auto' is a GPU where TensorFlow sees one on the worker, else the CPU. "
            "'cuda' makes a worker without a GPU an error."
        ),
    ] = "auto"
    pieces: Annotated[
        PositiveInt,
        Field(le=_MOST_PIECES, description="Pieces of a tile along Y and X, to save memory."),
    ] = 1
    network: Annotated[
        StarNetwork | None,
        Field(json_schema_extra={"readOnly": True}, description="Filled in from the network."),
    ] = None

    def resolve(self, image: Image, *, channels: tuple[int, ...]) -> Self:
        """Find and inspect the network, and fill what is fixed for the whole image.

        Raises:
            MissingExtraError: StarDist or TensorFlow is not installed.
            SegmenterError: The network is not there, or not for such images.
            ImageError: The image has no finite pixel.
        """
        folder = find_network(self.model)
        network = inspect_network(folder, self._built(folder))
        if self.network is not None and self.network != network:
            raise SegmenterError(
                f"the StarDist network in {folder} is not the one that was planned with: name the "
                "one that was meant"
            )
        _check(network, image, channels)
        intensity = self.intensity or intensity_ranges(image, channels, self.percentiles)
        if len(intensity) != network.channels:
            raise SegmenterError(
                f"intensity holds {len(intensity)} ranges and the network takes "
                f"{network.channels} channels: give one (low, high) per channel"
            )
        filled = {
            "model": str(folder),  # absolute: workers start in other folders
            "prob_thresh": self.prob_thresh or network.prob_thresh,
            "nms_thresh": self.nms_thresh or network.nms_thresh,
            "intensity": intensity,
            "network": network,
        }
        return self.model_copy(update=filled)

    def region(self, window: Box, shape: tuple[int, ...]) -> Box:
        """The window and what the network sees around it, from a multiple of its step on."""
        if self.network is None:
            return window
        n = len(shape)
        grown = window.grow(self.network.reach[-n:]).intersect(Box.of(shape))
        start = tuple(a // s * s for a, s in zip(grown.start, self.network.step[-n:], strict=True))
        stop = tuple(
            -(-b // s) * s for b, s in zip(grown.stop, self.network.step[-n:], strict=True)
        )
        return Box(start, stop).intersect(Box.of(shape))

    def at(self, place: Place) -> LabelFunction:
        """The function from the pixels of a region to the labels of its window.

        Raises:
            SegmenterError: As `load`.
        """
        window = place.window.within(place.region)
        return functools.partial(self._segment, self._loaded(), window=window)

    def load(self) -> LabelFunction:
        """The function that segments an image by itself.

        Raises:
            SegmenterError: Not resolved; or this worker has another network, or no GPU where one
                was asked for.
        """
        return functools.partial(self._segment, self._loaded(), window=np.s_[...])

    def release(self) -> None:
        """Drop the network."""
        _networks.drop()

    def smaller(self) -> Self | None:
        """The same in twice as many pieces along Y and X."""
        if 2 * self.pieces > _MOST_PIECES:
            return None
        return self.model_copy(update={"pieces": 2 * self.pieces})

    def without_effect(self) -> set[str]:
        """A hint for the planner, where the network computes, and in how many pieces."""
        return {"diameter", "device", "pieces", "model"}

    @property
    def diameter_px(self) -> float | None:
        """The diameter that was given."""
        return self.diameter

    @property
    def uses_gpu(self) -> bool:
        """Whether there is a GPU here that the network may use."""
        from cytopave.engine.gpu.vram import probe_gpu

        return self.device == "cuda" or (self.device == "auto" and probe_gpu().visible)

    def device_bytes(self, window_shape: tuple[int, ...], itemsize: int, n_channels: int) -> int:
        """GPU memory of the network's layers for a window and what it sees around it.

        By the widest layers of StarDist's usual networks; not measured on a card.
        """
        if not self.uses_gpu:
            return 0
        reach = self.network.reach if self.network else (0,) * len(window_shape)
        pixels = 1
        for n, r in zip(window_shape, reach[-len(window_shape) :], strict=True):
            pixels *= n // self.pieces + 2 * r
        return CONTEXT_BYTES + pixels * _BYTES_PER_PIXEL

    def megapixels_per_second(self, *, on_gpu: bool) -> float:
        """Rough speed of one worker."""
        return 4.0 if on_gpu else 0.3

    def _built(self, folder: Path) -> Any:
        gpu = {"auto": None, "cpu": False, "cuda": True}[self.device]
        key = (str(folder), content_hash(folder), gpu)
        return _networks.get(key, lambda: build_network(folder, gpu=gpu))

    def _loaded(self) -> Any:
        if self.network is None:
            raise SegmenterError("the network is open: call resolve(image) before load()")
        folder = find_network(self.model)
        if content_hash(folder) != self.network.sha256:
            raise SegmenterError(
                f"the StarDist network in {folder} on this worker is not the one that was planned "
                "with: put the same files there"
            )
        return self._built(folder)

    def _segment(self, model: Any, pixels: np.ndarray, *, window: Any) -> np.ndarray:
        assert self.network is not None
        assert self.intensity is not None
        assert self.prob_thresh is not None
        assert self.nms_thresh is not None
        channels = pixels if self.network.channels > 1 else pixels[None]
        plane = "Z" not in self.network.axes and channels.ndim == 4  # a stack of one plane
        scaled = np.empty((*channels.shape[1:], len(channels)), np.float32)
        for i, (low, high) in enumerate(self.intensity):
            scaled[..., i] = (channels[i].astype(np.float32) - low) / (high - low)
        np.nan_to_num(scaled, copy=False, posinf=1.0, neginf=0.0)
        labels = predict(
            model,
            scaled[0] if plane else scaled,
            prob_thresh=self.prob_thresh,
            nms_thresh=self.nms_thresh,
            pieces=self.pieces,
        )
        return drop_small((labels[None] if plane else labels)[window], self.min_size)


def _check(network: StarNetwork, image: Image, channels: tuple[int, ...]) -> None:
    depth = image.of("z", image.shape)[0] if "z" in image.axes else 1
    if "Z" in network.axes and depth == 1:
        raise SegmenterError(
            "the StarDist network is for stacks and the image has one plane: take a network in two "
            "dimensions"
        )
    if "Z" not in network.axes and depth > 1:
        raise SegmenterError(
            f"the StarDist network is for planes and the image is a stack of {depth}: take a "
            "network in three dimensions"
        )
    selected = max(1, len(channels))
    if selected != network.channels:
        raise SegmenterError(
            f"the StarDist network takes {network.channels} channels and {selected} are selected: "
            "name as many (--channels)"
        )
