"""Publication: making a finished label image or table visible, last and at once.

A label image is built in a hidden folder beside its final place. Publishing renames that folder
and then lists the name in the attributes of the ``labels`` group, each an atomic step; readers
find label images by that list. A run that is killed in between is completed by publishing again.
Tables are published in the same way into the group ``tables`` (the other *shelf*).

On a local store, a lock keeps two runs from losing each other's entry in the lists. Where the lock
is not supported (some network file systems), a warning says so. Remote stores have neither rename
nor locks: there the folder is copied, its metadata first, listed, and the hidden one deleted;
publishing into one store from two runs at the same moment is not safe there.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import uuid
from typing import TYPE_CHECKING, Any

from cytopave.engine.errors import OutputError
from cytopave.engine.omezarr import ngff
from cytopave.engine.omezarr.folders import METADATA, PART, Folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)

PROVENANCE = "cytopave"
"""Attribute of a label image's or a table's group that says what made it."""

NOUNS = {"labels": "label image", "tables": "table"}
"""What messages call an entry of each shelf."""

_LONGEST_NAME = 180
"""Bytes: file systems take 255, and the hidden folders beside a label image add to its name."""


def listed_names(shelf: Folder) -> list[str]:
    """The names in the list of a ``labels`` or ``tables`` group, in its order."""
    names = _listing(shelf, ngff.read_attributes(shelf) or {}).get(shelf.name)
    return [str(n) for n in names] if isinstance(names, list) else []


def _listing(shelf: Folder, attributes: dict[str, Any]) -> Any:
    """The part of a shelf's attributes that has the list: that of tables is no part of OME-Zarr."""
    return ngff.ome_of(attributes) if shelf.name == "labels" else attributes


def digest_of(group: Folder) -> str | None:
    """Digest of the run that wrote a label image or table; None for others' and missing ones."""
    block = (ngff.read_attributes(group) or {}).get(PROVENANCE)
    return str(block.get("digest")) if isinstance(block, dict) else None


def is_taken(shelf: Folder, name: str, digest: str) -> bool:
    """Whether a name is somebody's already.

    What the run of this digest moved into place and was killed before listing is not.
    """
    if not (shelf / name).exists():
        return False
    return name in listed_names(shelf) or digest_of(shelf / name) != digest


def check_writable(shelf: Folder) -> None:
    """Create and delete a file where labels or tables are to go.

    Raises:
        OutputError: That failed, or the store is read-only.
    """
    probe = f".{PROVENANCE}.{uuid.uuid4().hex}"
    try:
        if shelf.local:
            _probe_local(shelf.local, probe)
        else:
            shelf.write(probe, b"")
            system, path = shelf.remote(probe)
            system.rm_file(path)
    except (OSError, NotImplementedError, ValueError) as error:  # by kind of filesystem
        raise OutputError(
            f"{shelf.name} cannot be written to {shelf} ({error or 'the store is read-only'}): "
            "give a writable output"
        ) from error


def _probe_local(shelf: Path, probe: str) -> None:
    made = [p for p in (shelf, *shelf.parents) if not p.exists()]
    try:
        (shelf / probe).mkdir(parents=True)
        (shelf / probe).rmdir()
    finally:
        for folder in made:  # innermost first
            with contextlib.suppress(OSError):
                folder.rmdir()


def write_group(folder: Folder, *, zarr_format: int, attributes: dict[str, Any]) -> None:
    """Write the metadata of a zarr group; its attributes change in one step."""
    if zarr_format == 3:
        content = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
        folder.write_json("zarr.json", content)
        return
    if not folder.exists(".zgroup"):
        folder.write_json(".zgroup", {"zarr_format": 2})
    folder.write_json(".zattrs", attributes)


def publish(
    store: Folder,
    *,
    staging: Folder,
    name: str,
    digest: str,
    version: str,
    zarr_format: int,
    overwrite: bool,
    shelf: str = "labels",
) -> None:
    """Move a complete label image or table into place and list it. May be repeated after a kill.

    With ``overwrite``, the one of that name is moved aside before and deleted after; between two
    renames the name leads nowhere.

    Args:
        store: The store's root.
        staging: The hidden folder, beside the final place.
        name: The final name.
        digest: Digest of the run that made it, which its attributes hold too.
        version: OME-Zarr version of a ``labels`` group that has yet to be made.
        zarr_format: 2 or 3.
        overwrite: Whether one of that name is replaced.
        shelf: "labels" or "tables".

    Raises:
        OutputError: There is nothing to publish, or the name was taken in the meantime.
    """
    group = store / shelf
    target, aside = group / name, group / f".{name}.replaced"
    with locked(store):
        _sweep(group)
        _sweep(store)
        if staging.exists():
            if not overwrite and is_taken(group, name, digest):
                staging.remove()  # the tiles are still there for whoever overwrites after all
                raise OutputError(
                    f"a {NOUNS[shelf]} {name!r} appeared in {store} during the run: publish under "
                    "another name, or replace it (--overwrite)"
                )
            _move(staging, target, aside) if group.local else _copy(staging, target, group)
        elif digest_of(target) != digest:
            raise OutputError(f"there is no finished {NOUNS[shelf]} {name!r} to publish in {store}")
        _change_list(group, add=name, version=version, zarr_format=zarr_format)
        refresh_consolidated(store, shelf, name)
    for folder in (aside, staging):
        folder.remove()


def _move(staging: Folder, target: Folder, aside: Folder) -> None:
    if target.exists():
        aside.remove()
        os.rename(str(target), str(aside))
    os.rename(str(staging), str(target))


def _sweep(folder: Folder) -> None:
    """Delete what a kill in the middle of `Folder.write` leaves: nobody else writes here now."""
    if folder.local:
        for part in folder.local.glob(f".*{PART}"):
            part.unlink(missing_ok=True)


def _copy(staging: Folder, target: Folder, shelf: Folder) -> None:
    if target.exists():
        _change_list(shelf, remove=target.name)
        target.remove()
    # The metadata first: they hold the digest, by which the rest is known to be ours.
    for name in METADATA:
        if (content := staging.read(name)) is not None:
            target.write(name, content)
    for name, _, _ in staging.files():
        system, source = staging.remote(name)
        system.cp_file(source, target.remote(name)[1])


def _change_list(
    shelf: Folder,
    *,
    add: str | None = None,
    remove: str | None = None,
    version: str = "",
    zarr_format: int = 3,
) -> None:
    old = listed_names(shelf)
    names = [n for n in old if n != remove]
    if add is not None and add not in names:
        names.append(add)
    if names == old:
        return
    attributes = ngff.read_attributes(shelf)
    if attributes is None:
        has_ome = version == "0.5" and shelf.name == "labels"
        attributes = {"ome": {"version": version}} if has_ome else {}
    else:
        zarr_format = 3 if shelf.exists("zarr.json") else 2
    _listing(shelf, attributes)[shelf.name] = names
    write_group(shelf, zarr_format=zarr_format, attributes=attributes)


def refresh_consolidated(store: Folder, shelf: str, name: str) -> None:
    """Add the entry to the store's consolidated metadata, if it has any.

    Readers that use them would not find it otherwise.
    """
    key = "zarr.json" if store.exists("zarr.json") else ".zmetadata"
    content = store.read_json(key)
    block = content.get("consolidated_metadata") if content and key == "zarr.json" else content
    if not content or not block:
        return
    found = {**_metadata_of(store, shelf), **_metadata_below(store, f"{shelf}/{name}")}
    block["metadata"].update(found)
    store.write_json(key, content)


def _metadata_below(store: Folder, path: str) -> dict[str, Any]:
    """Metadata of a node and of all below it; folders of chunks have none."""
    found = _metadata_of(store, path)
    is_array = f"{path}/.zarray" in found or found.get(path, {}).get("node_type") == "array"
    if not is_array:
        for child in (store / path).folders():
            found |= _metadata_below(store, f"{path}/{child}")
    return found


def _metadata_of(store: Folder, path: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in METADATA[:4]:
        content = (store / path).read_json(name)
        if content is not None:
            found[path if name == "zarr.json" else f"{path}/{name}"] = content
    return found


@contextlib.contextmanager
def locked(store: Folder) -> Iterator[None]:
    """Be the only one who changes lists and attributes in a local store."""
    if store.local is None:
        yield
        return
    path = store.local / f".{PROVENANCE}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _acquire(path)
    try:
        yield
    finally:
        # Deleted while held, so that nobody holds a lock on a name that is gone unnoticed.
        path.unlink(missing_ok=True)
        os.close(handle)


def _acquire(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            logger.warning(
                "%s cannot be locked (%s): do not publish into it from two runs at once",
                path.parent,
                error,
            )
            return handle
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        os.close(handle)  # its holder deleted it while we waited


def check_name(name: str, *, noun: str = "label image") -> None:
    """Refuse names that a label image or table cannot have on every kind of store.

    Raises:
        OutputError: The name cannot be used.
    """
    if (
        not name
        or name.startswith((".", "__"))
        or not name.isprintable()
        or set(name) & set('/\\"')
        or name != name.strip()
    ):
        raise OutputError(
            f"{name!r} cannot name a {noun}: leave out slashes, quotes, control characters, "
            "blanks at the ends, and a dot or two underscores at the start"
        )
    if name in METADATA:
        raise OutputError(f"{name!r} is the name of zarr's own metadata: choose another name")
    if len(name.encode()) > _LONGEST_NAME:
        raise OutputError(
            f"the name {name[:20]}... is {len(name.encode())} bytes long: a {noun}'s name may "
            f"have {_LONGEST_NAME}"
        )
