"""From files and folders to conversions: what becomes which store, and what is done already."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cytopave.engine.convert import files
from cytopave.engine.convert.conversion import Conversion, digest_of, part_shape
from cytopave.engine.errors import CytopaveError, ImageError, OutputError
from cytopave.engine.omezarr.folders import Folder
from cytopave.engine.omezarr.publish import digest_of as published_digest
from cytopave.engine.scratch.tenancy import remove_unoccupied

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cytopave.engine.convert.scene import Scene

logger = logging.getLogger(__name__)


@dataclass
class Planned:
    """What is to be done, and what is not.

    Attributes:
        todo: Conversions that are to be made.
        done: Those whose stores are there already, made of the very same pixels.
        failed: Why a file, or a scene of it, cannot be converted, by its path.
    """

    todo: list[Conversion] = field(default_factory=list)
    done: list[Conversion] = field(default_factory=list)
    failed: dict[str, CytopaveError] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How files are converted.

    Attributes:
        scene: Number or name of the only image to take of each file; all where None.
        axes: Letters of the axes, for TIFF files that do not say.
        pixel_size: Micrometers in the place of what the file says: (Y and X), or (Z, Y, X).
        labels: Whether pixels are ids.
        overwrite: Whether stores that are there are replaced.
    """

    scene: int | str | None = None
    axes: str | None = None
    pixel_size: tuple[float, ...] | None = None
    labels: bool = False
    overwrite: bool = False


def plan_conversions(
    sources: Sequence[str], wanted: Wanted, *, output: str | None = None, match: str = "*"
) -> Planned:
    """Decide what becomes which store.

    A file ``scan.tif`` becomes ``scan.zarr``; of several images in a file, ``scan-0.zarr``, ...

    Args:
        sources: Files, and folders that are searched throughout.
        wanted: How they are converted.
        output: Folder of the stores, in which the folders of a searched folder appear again; a name
            that ends with .zarr is that of the only store. Beside the files where not given.
        match: Shell pattern for the path of a file below a searched folder.

    Raises:
        ImageError: There is no such file, or no image in a folder. If only one file was named,
            whatever is wrong with it is raised too.
        OutputError: Two files would become the same store.
    """
    planned = Planned()
    taken: dict[Path, str] = {}
    seen: set[str] = set()
    found = list(_sources(sources, match))
    for path, below in found:
        if str(path) in seen:
            continue
        try:
            scenes = _chosen(files.inspect(path, axes=wanted.axes), wanted.scene)
            seen |= {f for scene in scenes for f in scene.files}
            for scene in scenes:
                store = _store(scene, path, below, output, only=len(found) == len(scenes) == 1)
                if store in taken:
                    raise _Clash(
                        f"{taken[store]} and {path} would both become {store}: convert them into "
                        "different folders (--output)"
                    )
                taken[store] = str(path)
                _sort(_conversion(scene, store, wanted), planned)
        except _Clash as error:
            raise OutputError(str(error)) from None
        except CytopaveError as error:
            if len(found) == 1:
                raise
            planned.failed[str(path)] = error
    return planned


class _Clash(CytopaveError):
    """Raised out of the search, however many files there are."""


def _sources(sources: Sequence[str], match: str) -> Iterable[tuple[Path, Path]]:
    """Each file, and its folder below the one that was searched."""
    for source in sources:
        if "://" in source:
            raise ImageError(f"{source} is no local file: fetch it first")
        path = Path(os.path.abspath(os.path.expanduser(source)))
        if not path.is_dir():
            yield path, Path()
            continue
        found = list(files.find(path, match=match))
        if not found:
            raise ImageError(
                f"{path} has no files of images below it"
                + (f" that match {match!r}" if match != "*" else "")
                + ": name files, or another folder"
            )
        yield from ((one, one.parent.relative_to(path)) for one in found)


def _chosen(scenes: list[Scene], wanted: int | str | None) -> list[Scene]:
    if wanted is None:
        return scenes
    found = [s for s in scenes if s.name == wanted]
    if not found and str(wanted).isdecimal():
        found = [s for s in scenes if s.index == int(wanted)]
    if len(found) == 1:
        return found
    listed = ", ".join(f"{s.index} ({s.name})" if s.name else str(s.index) for s in scenes[:20])
    problem = "several images are called" if found else "there is no image"
    raise ImageError(f"{problem} {wanted!r} in {scenes[0].path}: it has {listed}")


def _store(scene: Scene, path: Path, below: Path, output: str | None, *, only: bool) -> Path:
    number = f"-{scene.index:0{len(str(scene.count - 1))}d}" if scene.count > 1 else ""
    name = f"{files.stem(path)}{number}.zarr"
    if output is None:
        return path.parent / name
    folder = Path(os.path.abspath(os.path.expanduser(output)))
    if folder.suffix == ".zarr":
        if only:
            return folder
        raise _Clash(f"{folder} can be one store only, and there are several images: name a folder")
    return folder / below / name


def _conversion(scene: Scene, store: Path, wanted: Wanted) -> Conversion:
    spacing, units, notes = dict(scene.spacing), dict(scene.units), list(scene.notes)
    axes = scene.ngff_axes
    if wanted.pixel_size is not None:
        given = wanted.pixel_size
        lengths = given if len(given) == 3 else (None, given[0], given[-1])
        for axis, length in zip("zyx", lengths, strict=True):
            if length is not None and axis in axes:
                spacing[axis], units[axis] = length, "micrometer"
    if "t" in axes and "t" not in spacing:
        notes.append("the file does not say the time between its time points: 1 is written")
    unknown = [a for a in axes if a in "zyx" and a not in spacing]
    if unknown:
        notes.append(
            f"the file does not say the pixel size along {', '.join(unknown)}: 1 without a unit is "
            "written (give it with --pixel-size)"
        )
    span, part = part_shape(scene)
    facts = [(os.path.basename(f), os.stat(f).st_size, os.stat(f).st_mtime_ns) for f in scene.files]
    return Conversion(
        scene=scene,
        store=store,
        digest=digest_of(
            files=facts,
            scene=scene.model_dump(exclude={"path", "files"}),
            spacing=spacing,
            labels=wanted.labels,
        ),
        labels=wanted.labels,
        scale=tuple(spacing.get(a, 1.0) for a in axes),
        units=tuple(units.get(a) for a in axes),
        notes=tuple(notes),
        span=span,
        part=part,
        overwrite=wanted.overwrite,
    )


def _sort(conversion: Conversion, planned: Planned) -> None:
    store = Folder(str(conversion.store))
    if not store.exists():
        planned.todo.append(conversion)
    elif published_digest(store) == conversion.digest:
        planned.done.append(conversion)
        if conversion.work.exists():  # a kill after the very last step
            remove_unoccupied(conversion.work)
    elif not conversion.overwrite:
        raise OutputError(
            f"{store} exists and was not made of {conversion.scene.path} as it is now: choose "
            "another folder (--output), or replace it (--overwrite)"
        )
    elif not any(store.exists(name) for name in ("zarr.json", ".zgroup", ".zarray")):
        raise OutputError(f"{store} is no zarr store and is not replaced: move it away")
    else:
        planned.todo.append(conversion)
