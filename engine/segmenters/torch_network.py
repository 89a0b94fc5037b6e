"""A torch network of yours, evaluated patch by patch on the machinery of the fast path.

Two functions make a segmenter: one builds the network (patches in, maps out), one makes labels of
maps. The patches lie on one grid for the whole image, so that what the network says of a pixel does
not depend on the tile.
"""

from __future__ import annotations

import importlib.util
import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, NonNegativeInt, PositiveFloat, PositiveInt

from cytopave.engine.errors import MissingExtraError, SegmenterError
from cytopave.engine.segmenters import patches
from cytopave.engine.segmenters.base import LabelFunction, SegmenterBase
from cytopave.engine.segmenters.imported import PATTERN, SourceHash, checked_hash, load_function
from cytopave.engine.segmenters.intensities import Percentiles, Ranges, intensity_ranges
from cytopave.engine.segmenters.kept import Kept
from cytopave.engine.segmenters.memory import CONTEXT_BYTES, KEPT_BYTES
from cytopave.engine.segmenters.torch_device import Device, OnTorch, torch_device

if TYPE_CHECKING:
    from cytopave.engine.boxes import Box
    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.patchwise.evaluator import PatchEvaluator
    from cytopave.engine.patchwise.maps import MapsRecipe
    from cytopave.engine.segmenters.place import Place
    from cytopave.engine.segmenters.steps import Steps

_evaluators: Kept[PatchEvaluator[MapsRecipe]] = Kept()


class TorchNetwork(OnTorch, SegmenterBase):
    """A torch network of yours, and the function that makes labels of its maps.

    ``network`` names a function ``build(device, **kwargs)``; it returns what takes patches
    ``(n, C, 256, 256)`` float32 on that device and returns maps ``(n, maps, 256, 256)`` of floats.
    ``labels`` names a function ``f(maps, **label_kwargs)``; it gets the maps ``(maps, Y, X)``
    float32 of a window, on the device, and returns integer labels ``(Y, X)``, as a tensor there or
    as an array. Where patches overlap their answers are averaged, by weights that fall towards
    their edges. Stacks are segmented plane by plane; the merge joins sections that match.
    """

    kind: Literal["torch"] = "torch"
    network: Annotated[
        str,
        Field(pattern=PATTERN, description="'package.module:name' of build(device, **kwargs)"),
    ]
    labels: Annotated[
        str,
        Field(pattern=PATTERN, description="'package.module:name' of f(maps, **label_kwargs)"),
    ]
    kwargs: dict[str, JsonValue] = Field(
        default_factory=dict, description="Keyword arguments that build the network; JSON values."
    )
    label_kwargs: dict[str, JsonValue] = Field(
        default_factory=dict, description="Keyword arguments for every call of labels; JSON values."
    )
    scale: Annotated[
        float,
        Field(gt=0, le=64, description="Factor by which the network is shown the image larger."),
    ] = 1.0
    percentiles: Annotated[
        Percentiles,
        Field(description="Percentiles of the whole image that become 0 and 1."),
    ] = (1.0, 99.0)
    intensity: Annotated[
        Ranges | None,
        Field(
            description="What becomes 0 and 1, per selected channel. Empty: the percentiles of the "
            "whole image, taken once."
        ),
    ] = None
    min_size: Annotated[
        NonNegativeInt, Field(description="Objects of fewer pixels are dropped.")
    ] = 0
    batch_size: Annotated[
        PositiveInt, Field(description="Patches that the network is given at a time on a GPU.")
    ] = 16
    maps: Annotated[
        PositiveInt, Field(description="Maps that the network answers with: for planning alone.")
    ] = 3
    diameter: Annotated[
        PositiveFloat | None,
        Field(description="Typical diameter of an object in pixels; sizes an automatic halo."),
    ] = None
    device: Annotated[
        Device,
        Field(
            description="'auto' is a GPU where the worker's PyTorch sees one, else the CPU. 'cuda' "
            "makes a worker without a GPU an error."
        ),
    ] = "auto"
    version: Annotated[
        str,
        Field(
            description="Change it when results change and the functions' own modules do not: "
            "other modules, weights. Tiles of another version are computed again.",
        ),
    ] = ""
    network_sha256: SourceHash = None
    labels_sha256: SourceHash = None

    def resolve(self, image: Image, *, channels: tuple[int, ...]) -> Self:
        """Import the functions, check their arguments, and fill what is fixed for the whole image.

        Raises:
            MissingExtraError: PyTorch is not installed.
            SegmenterError: A function is not there, or does not take its arguments.
            ImageError: The image has no finite pixel.
        """
        if importlib.util.find_spec("torch") is None:
            raise MissingExtraError(
                "the segmenter 'torch' needs PyTorch: install cytopave[cellpose], or torch itself"
            )
        intensity = self.intensity or intensity_ranges(image, channels, self.percentiles)
        if len(intensity) != max(1, len(channels)):
            raise SegmenterError(
                f"intensity holds {len(intensity)} ranges and {max(1, len(channels))} channels are "
                "selected: give one (low, high) per channel"
            )
        filled = {
            "intensity": intensity,
            "network_sha256": checked_hash(self.network, self.kwargs, given="device"),
            "labels_sha256": checked_hash(self.labels, self.label_kwargs, given="maps"),
        }
        return self.model_copy(update=filled)

    def region(self, window: Box, shape: tuple[int, ...]) -> Box:
        """All that the patches see which cover the window."""
        return patches.region(window, shape, rescale=self.scale)

    def at(self, place: Place) -> LabelFunction:
        """The function for one place; the network is built once per process.

        Raises:
            SegmenterError: As `load`.
        """
        self._evaluator()
        return self.steps(place)

    def steps(self, place: Place) -> Steps:
        """What `at` does, in steps."""
        return patches.steps(
            self._evaluator,
            place,
            self._recipe(),
            batch=self.batch_size,
            device=self.device,
            planewise=True,
        )

    def load(self) -> LabelFunction:
        """The function that segments one tile as an image by itself.

        Raises:
            SegmenterError: Not resolved; or this worker has other functions, or no GPU where one
                was asked for.
        """
        self._evaluator()
        channels = len(self._recipe().intensity)
        return lambda tile: self.steps(patches.alone(tile, channels))(tile)

    def release(self) -> None:
        """Drop the network."""
        _evaluators.drop()

    def smaller(self) -> Self | None:
        """The same with half the patches at a time, or None at one."""
        if self.batch_size == 1:
            return None
        return self.model_copy(update={"batch_size": self.batch_size // 2})

    def without_effect(self) -> set[str]:
        """What only decides where and how fast, and what intensities were resolved from."""
        names = {"batch_size", "device", "diameter", "maps"}
        return names | ({"percentiles"} if self.intensity is not None else set())

    @property
    def planewise(self) -> bool:
        """Each plane of a stack is segmented by itself."""
        return True

    @property
    def diameter_px(self) -> float | None:
        """The diameter that was given."""
        return self.diameter

    def placed_on(self, *, gpu: bool) -> Self:
        """The same without the choice of 'auto': no worker falls back to its CPU silently."""
        return self.model_copy(update={"device": self.settled_device(gpu=gpu)})

    def device_bytes(self, window_shape: tuple[int, ...], itemsize: int, n_channels: int) -> int:
        """What is known of a tile: its pixels and maps, thrice, for what makes labels of them.

        The network's own layers are not known; where they do not fit, the patch batch is halved.
        """
        del itemsize  # pixels are float32 there
        if not self.wants_gpu:
            return 0
        return CONTEXT_BYTES + KEPT_BYTES + self._bytes(window_shape, n_channels)

    def host_bytes(self, window_shape: tuple[int, ...], itemsize: int, n_channels: int) -> int:
        """The same where CPU cores compute."""
        del itemsize
        return 0 if self.wants_gpu else self._bytes(window_shape, n_channels)

    def _bytes(self, window_shape: tuple[int, ...], n_channels: int) -> int:
        pixels = math.prod(window_shape) * max(1.0, self.scale**2)
        return int(pixels * 4 * (2 * n_channels + 3 * self.maps))

    def _recipe(self) -> MapsRecipe:
        from cytopave.engine.patchwise.maps import MapsRecipe

        if self.intensity is None:
            raise SegmenterError("the segmenter is open: call resolve(image) before load()")
        function = load_function(self.labels, self.labels_sha256)
        return MapsRecipe(
            rescale=self.scale,
            intensity=self.intensity,
            name=self.labels,
            labels=function,
            kwargs=self.label_kwargs,
            min_size=self.min_size,
        )

    def _evaluator(self) -> PatchEvaluator[MapsRecipe]:
        key = (self.digest(), self.device)
        return _evaluators.get(key, self._build)

    def _build(self) -> PatchEvaluator[Any]:
        from cytopave.engine.patchwise.maps import MapsEvaluator
        from cytopave.engine.patchwise.network import FunctionNetwork, named

        device = torch_device(self.device)
        build = load_function(self.network, self.network_sha256)
        with named(self.network, SegmenterError):
            forward = build(device, **self.kwargs)
        if not callable(forward):
            raise SegmenterError(
                f"{self.network} returned a {type(forward).__name__}: return what takes patches "
                "and returns maps, such as a torch.nn.Module"
            )
        network = FunctionNetwork(forward, device, batch=self.batch_size, name=self.network)
        return MapsEvaluator(network, keep_bytes=KEPT_BYTES)
