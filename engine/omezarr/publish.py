"""Publication: making a finished label image visible, last and at once.

A label image is built in a hidden folder beside its final place. Publishing renames that folder
and then lists the name in the attributes of the ``labels`` group, each an atomic step; readers
find label images by that list. A run that is killed in between is completed by publishing again.

On a local store, a lock keeps two runs from losing each other's entry in the list. Where the lock
is not supported (some network file systems), a warning says so. Remote stores have neither rename
nor locks: there the folder is copied, its metadata first, listed, and the hidden one deleted;
publishing into one labels group from two runs at the same moment is not safe there.
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
"""Attribute of a label image's group that says what made it."""

_LONGEST_NAME = 180
"""Bytes: file systems take 255, and the hidden folders beside a label image add to its name."""


def listed_names(labels: Folder) -> list[str]:
    """The names in the list of a ``labels`` group, in its order."""
    names = ngff.ome_of(ngff.read_attributes(labels) or {}).get("labels")
    return [str(n) for n in names] if isinstance(names, list) else []


def digest_of(group: Folder) -> str | None:
    """Digest of the run that wrote a label image; None for other tools' and missing ones."""
    block = (ngff.read_attributes(group) or {}).get(PROVENANCE)
    return str(block.get("digest")) if isinstance(block, dict) else None


def is_taken(labels: Folder, name: str, digest: str) -> bool:
    """Whether a name is somebody's already.

    What the run of this digest moved into place and was killed before listing is not.
    """
    if not (labels / name).exists():
        return False
    return name in listed_names(labels) or digest_of(labels / name) != digest


def check_writable(labels: Folder) -> None:
    """Create and delete a file where labels are to go.

    Raises:
        OutputError: That failed, or the store is read-only.
    """
    probe = f".{PROVENANCE}.{uuid.uuid4().hex}"
    try:
        if labels.local:
            _probe_local(labels.local, probe)
        else:
            labels.write(probe, b"")
            system, path = labels.remote(probe)
            system.rm_file(path)
    except (OSError, NotImplementedError, ValueError) as error:  # by kind of filesystem
        raise OutputError(
            f"labels cannot be written to {labels} ({error or 'the store is read-only'}): "
            "give a writable output"
        ) from error


def _probe_local(labels: Path, probe: str) -> None:
    made = [p for p in (labels, *labels.parents) if not p.exists()]
    try:
        (labels / probe).mkdir(parents=True)
        (labels / probe).rmdir()
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
) -> None:
    """Move a complete label image into place and list it. May be repeated after a kill.

    With ``overwrite``, the label image of that name is moved aside before and deleted after;
    between two renames the name leads nowhere.

    Raises:
        OutputError: There is nothing to publish, or the name was taken in the meantime.
    """
    labels = store / "labels"
    target, aside = labels / name, labels / f".{name}.replaced"
    with _locked(labels):
        _sweep(labels)
        _sweep(store)
        if staging.exists():
            if not overwrite and is_taken(labels, name, digest):
                staging.remove()  # the tiles are still there for whoever overwrites after all
                raise OutputError(
                    f"a label image {name!r} appeared in {store} during the run: publish under "
                    "another name, or replace it (--overwrite)"
                )
            _move(staging, target, aside) if labels.local else _copy(staging, target, labels)
        elif digest_of(target) != digest:
            raise OutputError(f"there is no finished label image {name!r} to publish in {store}")
        _change_list(labels, add=name, version=version, zarr_format=zarr_format)
        _refresh_consolidated(store, name)
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


def _copy(staging: Folder, target: Folder, labels: Folder) -> None:
    if target.exists():
        _change_list(labels, remove=target.name)
        target.remove()
    # The metadata first: they hold the digest, by which the rest is known to be ours.
    for name in METADATA:
        if (content := staging.read(name)) is not None:
            target.write(name, content)
    for name, _, _ in staging.files():
        system, source = staging.remote(name)
        system.cp_file(source, target.remote(name)[1])


def _change_list(
    labels: Folder,
    *,
    add: str | None = None,
    remove: str | None = None,
    version: str = "",
    zarr_format: int = 3,
) -> None:
    old = listed_names(labels)
    names = [n for n in old if n != remove]
    if add is not None and add not in names:
        names.append(add)
    if names == old:
        return
    attributes = ngff.read_attributes(labels)
    if attributes is None:
        attributes = {"ome": {"version": version}} if version == "0.5" else {}
    else:
        zarr_format = 3 if labels.exists("zarr.json") else 2
    ome = attributes.get("ome", attributes)
    ome["labels"] = names
    write_group(labels, zarr_format=zarr_format, attributes=attributes)


def _refresh_consolidated(store: Folder, name: str) -> None:
    """Add the label image to the store's consolidated metadata, if it has any.

    Readers that use them would not find the labels otherwise.
    """
    key = "zarr.json" if store.exists("zarr.json") else ".zmetadata"
    content = store.read_json(key)
    block = content.get("consolidated_metadata") if content and key == "zarr.json" else content
    if not content or not block:
        return
    block["metadata"].update(_metadata_below(store, ("labels", f"labels/{name}")))
    store.write_json(key, content)


def _metadata_below(store: Folder, paths: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    arrays = [f"{paths[-1]}/{child}" for child in (store / paths[-1]).folders()]
    for path in (*paths, *arrays):
        for name in METADATA[:4]:
            content = (store / path).read_json(name)
            if content is not None:
                found[path if name == "zarr.json" else f"{path}/{name}"] = content
    return found


@contextlib.contextmanager
def _locked(labels: Folder) -> Iterator[None]:
    if labels.local is None:
        yield
        return
    path = labels.local / f".{PROVENANCE}.lock"
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


def check_name(name: str) -> None:
    """Refuse names that a label image cannot have on every kind of store.

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
            f"{name!r} cannot name a label image: leave out slashes, quotes, control characters, "
            "blanks at the ends, and a dot or two underscores at the start"
        )
    if name in METADATA:
        raise OutputError(f"{name!r} is the name of zarr's own metadata: choose another name")
    if len(name.encode()) > _LONGEST_NAME:
        raise OutputError(
            f"the name {name[:20]}... is {len(name.encode())} bytes long: a label image's name may "
            f"have {_LONGEST_NAME}"
        )
