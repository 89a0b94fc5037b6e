"""Which images of a folder need labels: those without, and those that changed since."""

from __future__ import annotations

import fnmatch
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from cytopave.engine.errors import UserError
from cytopave.engine.omezarr import ngff
from cytopave.engine.omezarr.folders import Folder, absolute
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.omezarr.labels import label_store
from cytopave.engine.omezarr.publish import PROVENANCE, check_name, listed_names
from cytopave.engine.search import places

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cytopave.engine.omezarr.image import Image

State = Literal["new", "changed", "arriving", "labelled", "incomplete", "foreign", "unreadable"]
"""What is known of an image's labels.

new: there are none of that name. changed: they were made of other pixels. arriving: its files are
still changing. labelled: nothing to do. incomplete: the same, but tiles were left out. foreign:
another program made them. unreadable: it is no image that can be segmented.
"""


@dataclass(frozen=True)
class Candidate:
    """An image that was found.

    Attributes:
        url: The image.
        path: Its path below the folder that was searched, its own name for that folder itself.
        output: Store that gets the labels, None for the one that is chosen where none is named.
        state: What is known of its labels.
        fingerprint: The image's, where it was looked at.
        note: Why it is unreadable.
    """

    url: str
    path: str
    output: str | None
    state: State
    fingerprint: str = ""
    note: str = ""

    @property
    def wanted(self) -> bool:
        """Whether labels are to be made."""
        return self.state in ("new", "changed")


def candidates(
    folder: str,
    *,
    name: str,
    match: str = "*",
    output: str | None = None,
    settled_seconds: float = 60.0,
    level: int = 0,
    axes: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[Candidate]:
    """Look at every image in a folder or bucket, sorted by path; no pixel is read.

    Args:
        folder: Path or fsspec URL; images in folders below it and fields of plates count.
        name: Name of the label image.
        match: Shell pattern for an image's path below the folder; ``*`` also matches slashes.
        output: Folder that gets a store of labels for each image, of the image's path. Default:
            the labels go into the images.
        settled_seconds: An image of which a file changed more recently may still be arriving.
        level: Level of the pyramid that is segmented: changes of its files count.
        axes: Axes of plain arrays.
        storage_options: What fsspec needs to open the folder.

    Raises:
        ImageError: There is no such folder.
        OutputError: No label image can have that name.
    """
    check_name(name)
    outputs = absolute(output) if output else None
    for place in places(folder, storage_options=storage_options):
        path = place.path or place.folder.name
        if place.kind not in ("image", "array", "damaged") or not fnmatch.fnmatch(path, match):
            continue
        url = str(place.folder)
        store = f"{outputs}/{path}" if outputs else None
        try:
            image = open_image(url, level=level, axes=axes, storage_options=storage_options)
            labels = Folder(label_store(image, store), dict(storage_options or {})) / "labels"
            state, fingerprint = _state(image, labels, name, settled_seconds)
        except UserError as error:
            yield Candidate(url, path, store, "unreadable", note=str(error))
        else:
            yield Candidate(url, path, store, state, fingerprint)


def _state(image: Image, labels: Folder, name: str, settled_seconds: float) -> tuple[State, str]:
    fingerprint = image.fingerprint()
    state = _label_state(labels, name, fingerprint)
    if state in ("new", "changed"):
        changed = Folder(image.url, image.storage_options, image.levels[image.level].path).changed()
        if changed is not None and time.time() - changed < settled_seconds:
            return "arriving", fingerprint
    return state, fingerprint


def _label_state(labels: Folder, name: str, fingerprint: str) -> State:
    if name not in listed_names(labels):
        return "new"
    made = (ngff.read_attributes(labels / name) or {}).get(PROVENANCE)
    if not isinstance(made, dict) or "fingerprint" not in made:
        return "foreign"
    if made["fingerprint"] != fingerprint:
        return "changed"
    return "incomplete" if made.get("missing") else "labelled"
