"""Any function ``f(tile, **kwargs) -> labels`` that can be imported by name."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, JsonValue, PositiveFloat

from cytopave.engine.segmenters.base import LabelFunction, SegmenterBase
from cytopave.engine.segmenters.imported import PATTERN, SourceHash, checked_hash, load_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from cytopave.engine.omezarr.image import Image


class Custom(SegmenterBase):
    """A function of yours, named by where it is imported from.

    It gets one tile ``(C, [Z], Y, X)``, or ``([Z], Y, X)`` where one channel was selected, as an
    array of its own that it may write into, and returns integer labels ``([Z], Y, X)``, 0 being
    the background. It runs on the workers, so it has to be importable there.
    """

    kind: Literal["custom"] = "custom"
    function: Annotated[
        str,
        Field(
            pattern=PATTERN,
            description="'package.module:name'",
        ),
    ]
    kwargs: dict[str, JsonValue] = Field(
        default_factory=dict, description="Keyword arguments for every call; JSON values."
    )
    gpu: Annotated[bool, Field(description="Whether the function computes on the GPU.")] = False
    diameter: Annotated[
        PositiveFloat | None,
        Field(description="Typical diameter of an object in pixels; sizes an automatic halo."),
    ] = None
    version: Annotated[
        str,
        Field(
            description="Change it when the function's results change and its own module does "
            "not: other modules, weights. Tiles of another version are computed again.",
        ),
    ] = ""
    source_sha256: SourceHash = None

    def resolve(self, image: Image, *, channels: tuple[int, ...]) -> Self:
        """Import the function, check its arguments and hash the file that defines it.

        Raises:
            SegmenterError: No such module or name, not callable, or it does not take the kwargs.
        """
        found = checked_hash(self.function, self.kwargs, given="tile")
        return self.model_copy(update={"source_sha256": found})

    def load(self) -> LabelFunction:
        """The function, with its arguments bound.

        Raises:
            SegmenterError: It cannot be imported on this worker, or from another file than planned.
        """
        function = load_function(self.function, self.source_sha256)
        return functools.partial(_call, function, self.kwargs)

    def without_effect(self) -> set[str]:
        """Hints for the planner."""
        return {"gpu", "diameter"}

    @property
    def diameter_px(self) -> float | None:
        """The diameter that was given."""
        return self.diameter

    @property
    def title(self) -> str:
        """Name for messages about what the function returned."""
        return f"the function {self.function}"

    @property
    def uses_gpu(self) -> bool:
        """Whether the function was said to compute on the GPU."""
        return self.gpu


def _call(
    function: Callable[..., Any], kwargs: dict[str, JsonValue], tile: np.ndarray
) -> np.ndarray:
    # A copy: a function that writes into its tile would falsify a second attempt at the same tile.
    return function(np.array(tile, order="C"), **kwargs)  # type: ignore[no-any-return]
