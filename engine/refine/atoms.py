"""Labels as a map of regions: which parts of equal ids there are, and which of them touch.

An *atom* is a part of equal ids, background included, that is connected by faces of pixels. What
is enclosed by what can be told from atoms and their contacts alone, so that an image of any size
becomes a graph, block by block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from cytopave.engine.refine.ids import compact

if TYPE_CHECKING:
    from cytopave.engine.boxes import Box
    from cytopave.engine.scratch.archive import Archive


@dataclass(frozen=True)
class Atoms:
    """The atoms of a block, and what it takes to join them to those of other blocks.

    Background atoms with a single neighbour are left out of all but `holes`: they are holes of it.

    Attributes:
        labels: ``(n,)`` id of each atom, 0 for background; atoms are numbered in this order.
        sizes: ``(n,)`` pixels of each, those of the holes that it surrounds included.
        numbers: ``(n,)`` number of each in the picture of atoms that `draw` gives.
        ends: ``(n,)`` whether it reaches the end of the image.
        inside: ``(n,)`` whether it reaches none of the block's faces.
        edges: ``(m, 2)`` pairs of atoms that touch.
        holes: ``(k, 2)`` number in the picture, and number of the atom around.
        faces: For each connected axis the atoms on the block's first and last plane across it.
    """

    labels: np.ndarray
    sizes: np.ndarray
    numbers: np.ndarray
    ends: np.ndarray
    inside: np.ndarray
    edges: np.ndarray
    holes: np.ndarray
    faces: tuple[tuple[np.ndarray, np.ndarray], ...]

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it by name, as an archive keeps it."""
        found = {name: getattr(self, name) for name in _NAMES}
        for i, face in enumerate(face for both in self.faces for face in both):
            found[f"face{i}"] = face
        return found

    @classmethod
    def of(cls, archive: Archive) -> Self:
        """From an archive of `arrays`."""
        n = len(archive.index) - len(_NAMES)
        faces = archive.read(*(f"face{i}" for i in range(n)))
        own = dict(zip(_NAMES, archive.read(*_NAMES), strict=True))
        return cls(**own, faces=tuple(zip(faces[::2], faces[1::2], strict=True)))


_NAMES = ("labels", "sizes", "numbers", "ends", "inside", "edges", "holes")


def axes_of(ndim: int, *, planewise: bool) -> tuple[int, ...]:
    """The axes along which pixels are connected."""
    return tuple(range(ndim - 2 if planewise else 0, ndim))


def draw(labels: np.ndarray, *, planewise: bool) -> np.ndarray:
    """A picture of a block's atoms: their numbers, from 1 on. The same for the same block."""
    import cc3d

    _, small = compact(labels)
    small += 1  # zeros would not be looked at
    if planewise and labels.ndim == 3:
        planes = np.arange(labels.shape[0], dtype=np.int64) * (int(small.max()) + 1)
        small = small + planes[:, None, None]
    picture = cc3d.connected_components(small, connectivity=2 * labels.ndim)
    return np.asarray(picture)


def find_atoms(labels: np.ndarray, box: Box, shape: tuple[int, ...], *, planewise: bool) -> Atoms:
    """The atoms of a block.

    Args:
        labels: ``([Z], Y, X)`` ids, 0 the background.
        box: Where the block lies.
        shape: Of the whole image.
        planewise: Whether each plane of a stack is an image by itself.
    """
    picture = draw(labels, planewise=planewise)
    axes = axes_of(labels.ndim, planewise=planewise)
    n = int(picture.max())
    flat = picture.ravel()
    start = np.flatnonzero(np.concatenate([[True], flat[1:] != flat[:-1]]))
    sizes = np.bincount(flat[start], np.diff(start, append=flat.size), minlength=n + 1)
    ids = np.zeros(n + 1, np.uint64)
    ids[flat[start]] = labels.ravel()[start]
    ends, faced = np.zeros(n + 1, bool), np.zeros(n + 1, bool)
    faces = []
    for axis in axes:
        low, high = picture.take(0, axis), picture.take(-1, axis)
        faces.append((low, high))
        faced[low] = faced[high] = True
        if box.start[axis] == 0:
            ends[low] = True
        if box.stop[axis] == shape[axis]:
            ends[high] = True
    edges = _contacts(picture, axes, n)
    # background within one atom
    count = np.bincount(edges.ravel(), minlength=n + 1)
    hole = (count == 1) & (ids == 0) & ~faced
    both = np.concatenate([edges, edges[:, ::-1]])
    around = both[hole[both[:, 0]]]
    np.add.at(sizes, around[:, 1], sizes[around[:, 0]])
    kept = ~hole
    kept[0] = False
    new = np.cumsum(kept) - 1
    edges = edges[kept[edges].all(axis=1)]
    numbers = np.flatnonzero(kept)
    return Atoms(
        labels=ids[numbers],
        sizes=sizes[numbers].astype(np.int64),
        numbers=numbers,
        ends=ends[numbers],
        inside=~faced[numbers],
        edges=new[edges],
        holes=np.stack([around[:, 0], new[around[:, 1]]], axis=1),
        faces=tuple((new[low], new[high]) for low, high in faces),
    )


def _contacts(picture: np.ndarray, axes: tuple[int, ...], n: int) -> np.ndarray:
    """Pairs of atoms that touch, each once."""
    found = [np.zeros(0, np.int64)]
    for axis in axes:
        front = (slice(None),) * axis
        found.append(
            pairs(picture[(*front, slice(None, -1))], picture[(*front, slice(1, None))], n)
        )
    keys = np.unique(np.concatenate(found))
    return np.stack(np.divmod(keys, n + 1), axis=1)


def pairs(a: np.ndarray, b: np.ndarray, n: int) -> np.ndarray:
    """Keys ``lower * (n + 1) + higher`` of the different numbers up to n that lie side by side."""
    differ = a != b
    a, b = a[differ].astype(np.int64), b[differ].astype(np.int64)
    keys = np.minimum(a, b) * (n + 1) + np.maximum(a, b)
    # most come in runs along borders
    return np.unique(keys[np.concatenate([[True], keys[1:] != keys[:-1]])]) if len(keys) else keys
