"""Holes of objects, filled exactly, whatever the size of objects and holes.

Blocks are looked at one by one (`find_atoms`), what they hold is joined into one graph
(`find_holes`), and the holes that the graph shows are painted block by block (`paint`).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cytopave.engine.refine.atoms import Atoms, axes_of, draw
from cytopave.engine.refine.enclosed import Graph, enclosing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cytopave.engine.omezarr.image import Image


class FillHoles(BaseModel):
    """Give objects the background that they enclose.

    Of each object as SciPy's ``binary_fill_holes(labels == id)``, but that other objects within
    keep their pixels. Where several objects enclose a pixel, the innermost gets it: that of which
    the hole around it is the smallest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["fill_holes"] = "fill_holes"
    planewise: bool = False
    """Of a stack, each plane by itself: a tube is filled too."""

    def check(self, labels: Image) -> None:
        """Nothing can be wrong."""


type Holes = tuple[np.ndarray, np.ndarray]
"""Numbers of atoms in a block's picture, and the id that each gets."""


def find_holes(
    load: Callable[[int], Atoms], counts: Sequence[int], *, planewise: bool
) -> Iterator[Holes]:
    """What is filled in each block of a time point.

    Args:
        load: Gives the atoms of a block by its number, in raster order; called more than once.
        counts: Number of blocks along each axis.
        planewise: Whether each plane of a stack is an image by itself.
    """
    n = int(np.prod(counts))
    for bare in (True, False):
        joined = _Joined(load, counts, axes_of(len(counts), planewise=planewise), bare=bare)
        found = enclosing(joined.graph)
        if found is not None:
            break
    assert found is not None
    owner = np.zeros(len(joined.graph.labels), np.uint64)
    owner[found[0]] = found[1]
    for block in range(n):
        atoms = load(block)
        numbers, gets = joined.atoms_of(block, atoms), np.zeros(len(atoms.labels), np.uint64)
        known = numbers >= 0
        gets[known] = owner[numbers[known]]
        filled = np.flatnonzero(gets)
        inside = atoms.labels[atoms.holes[:, 1]]
        yield (
            np.concatenate([atoms.numbers[filled], atoms.holes[:, 0]]),
            np.concatenate([gets[filled], inside]),
        )


def paint(labels: np.ndarray, holes: Holes, *, planewise: bool) -> np.ndarray:
    """A block whose holes are filled."""
    numbers, gets = holes
    if not len(numbers):
        return labels
    picture = draw(labels, planewise=planewise)
    fill = np.zeros(int(picture.max()) + 1, labels.dtype)
    fill[numbers] = gets
    return np.where(labels == 0, fill[picture], labels)


class _Joined:
    """The graph of a time point, from the atoms of its blocks.

    Args:
        load: See `find_holes`.
        counts: See `find_holes`.
        axes: The axes along which pixels are connected.
        bare: Whether sizes are left out, and objects within a block that touch one atom only:
            nobody's way to the outside leads through them.
    """

    def __init__(
        self,
        load: Callable[[int], Atoms],
        counts: Sequence[int],
        axes: Sequence[int],
        *,
        bare: bool,
    ) -> None:
        self._bare = bare
        self._begin = [0]
        self._part: np.ndarray | None = None
        nodes: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        edges = [np.zeros((0, 2), np.int32)]
        self._faces: dict[tuple[int, int], np.ndarray] = {}
        seams = [np.zeros((0, 2), np.int32)]
        for block, place in enumerate(itertools.product(*map(range, counts))):
            atoms = load(block)
            kept, numbers = self._kept(atoms), self.atoms_of(block, atoms)
            sizes = atoms.sizes[:0] if bare else atoms.sizes
            nodes.append((atoms.labels[kept], atoms.ends[kept], sizes))
            edges.append(_small(numbers[atoms.edges[kept[atoms.edges].all(axis=1)]]))
            seams += self._meet(block, place, counts, axes, [numbers[f] for f in _both(atoms)])
            self._begin.append(self._begin[-1] + int(kept.sum()))
        labels, ends, pixels = (np.concatenate(part) for part in zip(*nodes, strict=True))
        del nodes
        self.graph = self._graph(labels, ends, pixels, edges, seams)

    def atoms_of(self, block: int, atoms: Atoms) -> np.ndarray:
        """Numbers of a block's atoms in the graph; -1 for those that were left out.

        While the graph is made, they are the numbers of atoms that are not joined yet.
        """
        kept = self._kept(atoms)
        numbers: np.ndarray = np.where(kept, self._begin[block] + np.cumsum(kept) - 1, -1)
        if self._part is None:
            return numbers
        return np.asarray(np.where(kept, self._part[numbers], -1))

    def _kept(self, atoms: Atoms) -> np.ndarray:
        if not self._bare:
            return np.ones(len(atoms.labels), bool)
        count = np.bincount(atoms.edges.ravel(), minlength=len(atoms.labels))
        return np.asarray(~(atoms.inside & (atoms.labels > 0) & (count == 1)))

    def _meet(
        self,
        block: int,
        place: tuple[int, ...],
        counts: Sequence[int],
        axes: Sequence[int],
        faces: Sequence[np.ndarray],
    ) -> list[np.ndarray]:
        """Atoms that touch across the faces towards earlier blocks; later ones are kept in mind."""
        found = []
        for i, axis in enumerate(axes):
            stride = int(np.prod(counts[axis + 1 :]))
            if place[axis]:
                before = self._faces.pop((axis, block - stride))
                found.append(_distinct(before.ravel(), faces[2 * i].ravel()))
            if place[axis] + 1 < counts[axis]:
                self._faces[axis, block] = faces[2 * i + 1]
        return found

    def _graph(
        self,
        labels: np.ndarray,
        ends: np.ndarray,
        sizes: np.ndarray,
        inner: list[np.ndarray],
        across: list[np.ndarray],
    ) -> Graph:
        """Join the atoms that a seam cut; ``inner`` is emptied, for it is large."""
        seams = np.concatenate(across)
        cut = labels[seams[:, 0]] == labels[seams[:, 1]]
        same, n = seams[cut], len(labels)
        matrix = coo_array((np.ones(len(same), bool), (same[:, 0], same[:, 1])), shape=(n, n))
        m, part = connected_components(matrix, directed=False)
        self._part = part
        joined = np.zeros(m, np.uint64)
        joined[part] = labels
        reach = np.zeros(m, bool)
        reach[part[ends]] = True
        inner.append(seams[~cut])
        edges = part[np.concatenate(inner)]
        inner.clear()
        return Graph(
            labels=joined,
            ends=reach,
            edges=edges,
            sizes=None if self._bare else np.bincount(part, sizes, minlength=m),
        )


def _both(atoms: Atoms) -> list[np.ndarray]:
    return [face for faces in atoms.faces for face in faces]


def _distinct(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pairs of numbers that lie side by side, each once."""
    change = (a[1:] != a[:-1]) | (b[1:] != b[:-1])  # most come in runs
    both = np.stack([a, b], axis=1)[np.concatenate([[True], change])]
    return _small(np.unique(both, axis=0))


def _small(numbers: np.ndarray) -> np.ndarray:
    """Numbers of atoms in half the memory, as long as that is possible."""
    fits = numbers.max(initial=0) <= np.iinfo(np.int32).max
    return numbers.astype(np.int32) if fits else numbers
