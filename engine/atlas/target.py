"""Where an atlas run's results go: a store of their own, or into the table that they describe."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from cytopave.engine.errors import OutputError
from cytopave.engine.omezarr import ngff, publish
from cytopave.engine.omezarr.folders import Folder, absolute
from cytopave.engine.scratch.tenancy import DEFAULT_FOLDER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.atlas.store import AtlasStore


class AtlasTarget(BaseModel):
    """Where results go.

    Attributes:
        path: The output store; the input itself where results become columns of it.
        in_place: Whether they do.
        overwrite: Whether what is there is replaced.
    """

    model_config = ConfigDict(frozen=True)

    path: Path
    in_place: bool
    overwrite: bool

    def staging(self, digest: str) -> Path:
        """The hidden folder in which the output is built."""
        return self.path.parent / f".{self.path.name}.{digest[:8]}.staging"

    def check(self, columns: Sequence[str] = ()) -> None:
        """Refuse what cannot work; nothing is left behind.

        Args:
            columns: Names of the columns of obs that will be written in place.

        Raises:
            OutputError: The output exists, or cannot be written.
        """
        publish.check_writable(_at(self.path.parent))
        if self.in_place:
            frame = ngff.read_attributes(_at(self.path / "obs")) or {}
            taken = [c for c in columns if c in frame.get("column-order", ())]
            if taken and not self.overwrite:
                raise OutputError(
                    f"{self.path} has the column {taken[0]!r} already: name another one "
                    "(leiden.key), or replace it (--overwrite)"
                )
        elif os.path.lexists(self.path) and not self.overwrite:
            raise OutputError(
                f"{self.path} exists: choose another output, or replace it (--overwrite)"
            )

    def refresh(self) -> None:
        """Add new columns to the consolidated metadata of the store that holds the table."""
        if self.path.parent.name == "tables":
            publish.refresh_consolidated(_at(self.path.parent.parent), "tables", self.path.name)

    def publish(self, staging: Path) -> None:
        """Give a complete store its name, by renaming. May be called again after a kill.

        Raises:
            OutputError: There is nothing to publish, or the name was taken in the meantime.
        """
        aside = self.path.parent / f".{self.path.name}.replaced"
        try:
            if not staging.exists():
                raise OutputError(f"there is no finished store to publish as {self.path}")
            if self.path.exists():
                if not self.overwrite:
                    raise OutputError(
                        f"{self.path} appeared during the run: choose another output, or replace "
                        "it (--overwrite)"
                    )
                shutil.rmtree(aside, ignore_errors=True)
                os.rename(self.path, aside)
            os.rename(staging, self.path)
            shutil.rmtree(aside, ignore_errors=True)
        except OSError as error:
            raise OutputError(f"{self.path} cannot be written: {error}") from error


def atlas_target(
    store: AtlasStore, output: str | None, *, in_place: bool, overwrite: bool
) -> AtlasTarget:
    """Where the results of a run go.

    Args:
        store: The input.
        output: Path of the output store; None: the input gets the results, where it may.
        in_place: Whether it may.
        overwrite: Whether what is there is replaced.

    Raises:
        OutputError: There is no such place.
    """
    if output is None and not in_place:
        raise OutputError("an atlas of counts gets a store of its own: name it (output)")
    place = absolute(output) if output is not None else store.url
    if "://" in place:
        raise OutputError(
            f"atlases are written to this machine's file systems, which {place} is not: name a "
            "path, and copy the store afterwards"
        )
    path = Path(place)
    same = store.folder.local is not None and path.resolve() == store.folder.local.resolve()
    if same and not in_place:
        raise OutputError(f"{path} is the input: name another output")
    return AtlasTarget(path=path, in_place=same, overwrite=overwrite)


def scratch_folder(target: AtlasTarget, scratch: Path | None) -> Path:
    """The folder of all scratch folders: asked for, or beside the output."""
    return Path(absolute(scratch)) if scratch else target.path.parent / DEFAULT_FOLDER


def _at(path: Path) -> Folder:
    return Folder(str(path))
