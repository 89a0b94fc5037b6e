"""What runs that were given up leave behind: found, measured, and deleted when nobody needs it.

* Scratch folders. Every run that uses one holds its lock (`cytopave.engine.scratch.tenancy`); it is
  deleted under that lock.
* Label images and tables that were never published, and such as were moved aside by one that
  replaces them. What a run may be writing is known from the plans in the scratch folders in use.
* Stores that were being converted.
* Files that a kill left half written.

Hidden folders on remote stores have no locks: there, age alone tells.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from cytopave.engine.omezarr.folders import PART, Folder
from cytopave.engine.planning.plan import Plan
from cytopave.engine.refine.refinement import Refinement
from cytopave.engine.scratch.tenancy import DEFAULT_FOLDER, is_occupied, remove_unoccupied
from cytopave.engine.search import places
from cytopave.engine.tables.measurement import Measurement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Kind = Literal["scratch", "unpublished", "replaced", "partial file"]

_SCRATCH_NAME = re.compile(r"(table-|refine-|relate-)?[0-9a-f]{16}")
_SCRATCH_HOLDS = re.compile(
    r"plans|claims|tiles|results|left-out|parts|step-\d+|merge-.*|table-[0-9a-f]{16}|"
    r"[0-9a-f]{16}\.json"
)
_STAGING = re.compile(r"\.(.+)\.[0-9a-f]{8}\.staging")
_CONVERTING = re.compile(r"\.(.+)\.[0-9a-f]{8}\.converting")
_REPLACED = re.compile(r"\.(.+)\.replaced")


@dataclass(frozen=True)
class Leftover:
    """Something that no run needs, unless it is in use.

    Attributes:
        kind: What it is.
        folder: Where it lies.
        size: Bytes.
        age: Seconds since a file of it changed.
        in_use: Whether a run uses it now, or readers would miss it.
    """

    kind: Kind
    folder: Folder
    size: int
    age: float
    in_use: bool

    def remove(self) -> bool:
        """Delete it; returns whether it is gone (a run may have come in between)."""
        local = self.folder.local
        if self.in_use:
            return False
        if local is None:
            self.folder.remove()
        elif self.kind == "scratch" or _CONVERTING.fullmatch(local.name):
            return remove_unoccupied(local)
        elif self.kind == "partial file":
            local.unlink(missing_ok=True)
        else:
            # In one step, so that a run that begins now finds none and makes its own.
            doomed = local.with_name(f".{uuid.uuid4().hex}.staging")
            local.rename(doomed)
            shutil.rmtree(doomed)
        return True


def leftovers(
    folders: Iterable[str],
    *,
    scratch: Iterable[Path] = (),
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[Leftover]:
    """Everything that runs left behind in some folders, in use or not.

    Args:
        folders: Folders or buckets with images, or with stores of labels; searched throughout.
        scratch: Folders that were named as scratch; those beside images are found by themselves.
        storage_options: What fsspec needs to open the folders.

    Raises:
        ImageError: A folder is not there.
    """
    stores: list[Folder] = []
    parents = {path.expanduser().absolute() for path in scratch}
    for folder in folders:
        for place in places(folder, storage_options=storage_options):
            if place.folder.local:
                parents |= {
                    place.folder.local / DEFAULT_FOLDER,
                    place.folder.local.parent / DEFAULT_FOLDER,
                }
            if place.kind in ("image", "group"):
                stores.append(place.folder)
            if place.kind == "folder":
                yield from _conversions(place.folder)
    roots = [root for parent in sorted(parents) for root in _scratch_folders(parent)]
    used = {root for root in roots if is_occupied(root)}
    for root in roots:
        lies = Folder(str(root))
        yield Leftover("scratch", lies, lies.size(), _age(lies), root in used)
    being_made = {staging for root in used for staging in _stagings(root)}
    for store in stores:
        yield from _in_store(store, being_made)


def _scratch_folders(parent: Path) -> list[Path]:
    """Folders that are scratch by name and by all that they hold."""
    if not parent.is_dir():
        return []
    named = (p for p in sorted(parent.iterdir()) if _SCRATCH_NAME.fullmatch(p.name) and p.is_dir())
    return [p for p in named if all(_SCRATCH_HOLDS.fullmatch(name) for name in os.listdir(p))]


def _stagings(root: Path) -> Iterator[str]:
    """The unpublished label images and tables that the runs of a scratch folder make."""
    kinds: tuple[tuple[str, type[Plan | Measurement | Refinement]], ...] = (
        ("plans/*.json", Plan),
        ("*.json", Measurement),
        ("*.json", Refinement),
        ("table-*/*.json", Measurement),
    )
    for pattern, kind in kinds:
        for path in root.glob(pattern):
            try:
                yield str(kind.model_validate_json(path.read_bytes()).target.staging)
            except (OSError, ValidationError):
                continue


def _conversions(folder: Folder) -> Iterator[Leftover]:
    for name in folder.hidden() if folder.local else ():
        if converting := _CONVERTING.fullmatch(name):
            lies = folder / name
            # A kill between two renames leaves the store that was to be replaced in there.
            only = lies.exists("replaced") and not folder.exists(converting[1])
            in_use = only or is_occupied(Path(str(lies)))
            yield Leftover("unpublished", lies, lies.size(), _age(lies), in_use)


def _in_store(store: Folder, being_made: set[str]) -> Iterator[Leftover]:
    groups = (store / "labels", store / "tables")
    for group in groups:
        for name in group.hidden():
            folder = group / name
            if _STAGING.fullmatch(name):
                in_use = str(folder) in being_made
                yield Leftover("unpublished", folder, folder.size(), _age(folder), in_use)
            elif replaced := _REPLACED.fullmatch(name):
                # A kill between two renames leaves these as the only ones.
                in_use = not (group / replaced[1]).exists()
                yield Leftover("replaced", folder, folder.size(), _age(folder), in_use)
    for parent in (*(group.local for group in groups), store.local):
        for part in sorted(parent.glob(f".*{PART}")) if parent else ():
            status = part.stat()
            age = time.time() - status.st_ctime
            yield Leftover("partial file", Folder(str(part)), status.st_size, age, in_use=False)


def _age(folder: Folder) -> float:
    changed = folder.changed()
    if changed is None:
        changed = folder.local.stat().st_ctime if folder.local else time.time()
    return time.time() - changed
