"""What a conversion made."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from cytopave.engine.errors import ConvertError, CytopaveError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cytopave.engine.convert.conversion import Conversion
    from cytopave.engine.convert.planner import Planned


class Converted(BaseModel):
    """One image, or a file that could not be converted.

    Attributes:
        source: The file.
        scene: Number of the image in the file.
        store: Where the store is.
        state: Written now, there before, or failed.
        axes: Letters of its axes; empty where it failed.
        shape: Pixels per axis.
        dtype: Name of the numpy type.
        pixel_size: Per spatial axis, in ``units``; 1 where the file does not say.
        units: Unit of each spatial axis, or None.
        channels: Names of the channels.
        notes: What there is to be said, a sentence each; why it failed.
    """

    model_config = ConfigDict(frozen=True)

    source: str
    scene: int = 0
    store: str = ""
    state: Literal["converted", "done before", "failed"]
    axes: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    pixel_size: dict[str, float] = {}
    units: dict[str, str | None] = {}
    channels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def described_size(self) -> str:
        """Pixel size in words."""
        known = {a: v for a, v in self.pixel_size.items() if self.units.get(a)}
        return ", ".join(f"{a} {v:.4g} um" for a, v in known.items()) or "unknown"

    @classmethod
    def of(cls, conversion: Conversion, state: Literal["converted", "done before"]) -> Converted:
        """The entry of an image that is there."""
        scene = conversion.scene
        spatial = [i for i, a in enumerate(conversion.axes) if a in "zyx"]
        return cls(
            source=scene.path,
            scene=scene.index,
            store=str(conversion.store),
            state=state,
            axes=conversion.axes,
            shape=conversion.shape,
            dtype=scene.dtype,
            pixel_size={conversion.axes[i]: conversion.scale[i] for i in spatial},
            units={conversion.axes[i]: conversion.units[i] for i in spatial},
            channels=tuple(c.name or str(i) for i, c in enumerate(scene.channels)),
            notes=conversion.notes,
        )


class ConvertReport(BaseModel):
    """What a run of `convert_images` found and did.

    Attributes:
        images: One entry an image, in the order of the sources.
    """

    model_config = ConfigDict(frozen=True)

    images: list[Converted]

    @property
    def summary(self) -> str:
        """One line."""
        n = Counter(image.state for image in self.images)
        return ", ".join(f"{count} {state}" for state, count in n.items())

    def rows(self) -> list[dict[str, str]]:
        """A table of the images."""
        return [
            {
                "file": Path(image.source).name,
                "store": image.store or "-",
                "": image.state,
                "axes": image.axes,
                "pixels": " x ".join(map(str, image.shape)),
                "pixel size": image.described_size,
            }
            for image in self.images
        ]


def convert_report(planned: Planned, failed: Mapping[Path, Exception]) -> ConvertReport:
    """What became of the images.

    Args:
        planned: What was to be done.
        failed: Why not, by the store, or by the file where it did not come to that.
    """
    rows = [Converted.of(c, "done before") for c in planned.done]
    rows += [Converted.of(c, "converted") for c in planned.todo if c.store not in failed]
    sources = {c.store: c.scene.path for c in planned.todo}
    for place, error in failed.items():
        source = sources.get(place, str(place))
        rows.append(Converted(source=source, state="failed", notes=(_why(error),)))
    return ConvertReport(images=sorted(rows, key=lambda row: (row.source, row.scene)))


def failed_conversions(report: ConvertReport, failed: Mapping[Path, Exception]) -> Exception:
    """The error that ends a run of which images failed: the only one's own, or one that counts."""
    if len(report.images) == 1:
        return next(iter(failed.values()))
    shown = "; ".join(map(_why, list(failed.values())[:5]))
    return ConvertError(
        f"{len(failed)} of {len(report.images)} images could not be converted"
        f"{', the others are' if len(failed) < len(report.images) else ''}. {shown}"
    )


def _why(error: Exception) -> str:
    kind = "" if isinstance(error, CytopaveError) else f"{type(error).__name__}: "
    return f"{kind}{error}"
