"""The options that commands share, and the flow parameters that they mean."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, Token

from cytopave.engine.errors import ImageError, PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.planning.foreground import Mask
    from cytopave.engine.tiling import Tiling


def _whole(type_: Any, tokens: Sequence[Token]) -> int:
    """A whole number, and no other: a fraction would be cut off silently."""
    del type_
    text = tokens[0].value.strip()
    try:
        return int(text)
    except ValueError:
        raise PlanError(f"{tokens[0].keyword} {text} must be a whole number") from None


Whole = Annotated[int, Parameter(converter=_whole)]
"""An option that counts something."""

Flag = Annotated[bool, Parameter(show_default=False)]
"""An option without a value."""


type Method = Literal["cellpose", "threshold", "watershed", "stardist", "torch", "custom", "stored"]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Common:
    """Options of every command."""

    json: Flag = False
    """Print the result as one JSON document, and nothing else, on stdout."""
    verbose: Flag = False
    """Let Prefect and the workers write to the terminal, and show where errors come from."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Request:
    """What to segment, how, and where the labels go: options of ``plan`` and ``segment``."""

    name: str = "cells"
    """Name of the label image."""
    segmenter: (
        Literal["cellpose", "threshold", "watershed", "stardist", "torch", "custom", "stored"]
        | None
    ) = None
    """Method; 'custom' where a function is given, else 'cellpose'."""
    function: str | None = None
    """Your own function, package.module:name; modules of this folder can be named."""
    model: str | None = None
    """Cellpose's model: a name, a file, or 'nuclei-tiny' (for demos and tests only); or the folder
    of StarDist's."""
    diameter: float | None = None
    """Typical diameter of an object in pixels."""
    set: Annotated[tuple[str, ...], Parameter(name="--set", show_default=False)] = ()
    """Any other option of the method as key=value, the value as JSON or text; repeatable."""
    tile: str = "auto"
    """Core of a tile in pixels: 2048,2048 or 16,512,512, or one number for Y and X alike."""
    halo: str = "auto"
    """Pixels a tile sees beyond its core: 64 or 8,64,64; auto: one and a half diameters, or 64."""
    merge: Literal["iou", "touch"] = "iou"
    """When labels of neighbouring tiles are one object: where they agree, or where they touch."""
    level: Whole = 0
    """Level of the image's pyramid; 0 is the finest."""
    axes: str | None = None
    """Axes of a plain zarr array, such as zyx."""
    channels: str | None = None
    """Channels by number or name, such as 0,1 or DAPI (or a JSON list); all where not given."""
    mask: str | None = None
    """Where to segment at all: a label image of the same field of view, 'otsu', or a value."""
    mask_level: int | None = None
    """Level of the pyramid: the mask's, or the image's for a threshold; a coarse one otherwise."""
    mask_dark: Flag = False
    """What is not brighter than the threshold is foreground: for bright field."""
    clip: Flag = False
    """Remove what is labelled outside the mask, too, instead of skipping tiles only."""
    output: str | None = None
    """Store that gets labels/NAME; the image's own where not given."""
    overwrite: Flag = False
    """Replace a label image of that name."""
    workers: Whole | None = None
    """Number of workers; one a GPU, or one a CPU core, where not given."""
    cluster: str = "auto"
    """auto, cpu, nvlink, capacity, a scheduler's address (tcp://...), or a saved block's name."""
    scratch: str | None = None
    """Folder for tile files that all workers share; beside the labels where not given."""
    gpu_memory_gb: float | None = None
    """GiB of the workers' GPUs, where they cannot be seen from here."""
    no_measure: Flag = False
    """Write no table of the objects."""

    @property
    def sharing(self) -> int | None:
        """How many workers will share this host's memory at least; None for those elsewhere."""
        here = ("auto", "cpu", "nvlink", "capacity")
        return (self.workers or 1) if self.cluster.strip() in here else None

    def parameters(self) -> dict[str, Any]:
        """The parameters of ``make_plan`` that these options mean, except for the budget.

        Raises:
            UserError: An option has a value that it cannot have.
        """
        from cytopave.deployments.cli.methods import build_segmenter
        from cytopave.engine.merge import Merge
        from cytopave.engine.settings import load_settings

        scratch = Path(self.scratch) if self.scratch else load_settings().scratch
        check_positive(
            workers=self.workers, gpu_memory_gb=self.gpu_memory_gb, diameter=self.diameter
        )
        return {
            "segmenter": build_segmenter(self),
            "tiling": self._tiling(),
            "merge": Merge(rule=self.merge),
            "name": self.name,
            "output": self.output,
            "overwrite": self.overwrite,
            "level": self.level,
            "axes": self.axes,
            "channels": parse_channels(self.channels),
            "mask": self._mask(),
            "scratch": scratch,
            "measure": not self.no_measure,
        }

    def resolved(self, image: str, *, verbose: bool) -> tuple[str, dict[str, Any]]:
        """The image and the parameters, with what was saved in Prefect in the place of its name.

        Raises:
            UserError: An option has a value that it cannot have, or names what nobody saved.
        """
        from cytopave.deployments.cli.saved import look_up_stores, resolve_saved

        look_up_stores(verbose=verbose)
        return resolve_saved(image, self.parameters())

    def _tiling(self) -> Tiling:
        from cytopave.engine.tiling import Tiling

        tile = _lengths(self.tile, "--tile", least=1)
        halo = _lengths(self.halo, "--halo", least=0)
        if isinstance(tile, tuple) and len(tile) == 1:
            tile *= 2
        if isinstance(halo, tuple) and len(halo) == 1:
            return Tiling(tile=tile, halo=halo[0])
        return Tiling(tile=tile, halo=halo)

    def _mask(self) -> Mask | None:
        from pydantic import ValidationError

        from cytopave.engine.planning.foreground import Mask

        further = {"level": self.mask_level, "dark": self.mask_dark, "clip": self.clip}
        given = {
            name: value
            for name, value in further.items()
            if value is not None and value is not False
        }
        if self.mask is None:
            if given:
                raise ImageError("--mask-level, --mask-dark and --clip say more of a --mask")
            return None
        try:
            mask = Mask.model_validate(self.mask)
            return Mask.model_validate({**mask.model_dump(), **given})
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ImageError(f"--mask {self.mask}: {reason}") from None


def parse_channels(text: str | None) -> list[int | str] | None:
    """The channels that ``--channels`` names.

    Raises:
        ImageError: It begins as a JSON list and is none.
    """
    if text is None:
        return None
    if not text.startswith("["):
        return [part.strip() for part in text.split(",")]
    try:
        return list(json.loads(text))
    except ValueError as error:
        raise ImageError(f"--channels {text} is not a JSON list: {error}") from None


def check_positive(**options: float | None) -> None:
    """Refuse numbers that are not finite and larger than 0.

    Raises:
        PlanError: One is not; it is named as its option.
    """
    for name, value in options.items():
        if value is not None and not 0 < value < math.inf:
            option = name.replace("_", "-")
            raise PlanError(f"--{option} {value} must be a number larger than 0")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Keeping:
    """What becomes of tiles: options of ``segment``, which ``plan`` accepts as well."""

    keep_scratch: Flag = False
    """Keep the tile files after publication."""
    resume: Flag = False
    """Continue an interrupted run; this is what the same command does anyway."""
    allow_failed: int = 0
    """Publish although so many batches of tiles failed; the report names the missing area."""


def _lengths(text: str, option: str, *, least: int) -> tuple[int, ...] | Literal["auto"]:
    if text.strip() == "auto":
        return "auto"
    try:
        lengths = tuple(int(part) for part in text.split(","))
    except ValueError:
        lengths = ()
    if not lengths or len(lengths) > 3 or min(lengths) < least:
        raise PlanError(
            f"{option} {text} is not understood: give 'auto', or one to three whole numbers of "
            f"pixels from {least} on, separated by commas, such as {option} 64,64"
        )
    return lengths
