"""Which object encloses a part of the background, told from a graph of atoms.

An object encloses an atom if every way from the outside to it leads through the object. The
objects that do so are found as compilers find dominators: what encloses an atom is what all of its
neighbours have in common, they themselves included; the largest solution of these equations is the
answer, for the equations distribute over ways (Kildall, POPL 1973). An object may have several
atoms, which count as one.

Nearly all atoms can be reached in two ways that share no object. They are found first, for all
atoms at once, and only the rest is looked at one by one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NONE: frozenset[int] = frozenset()
_AT_ONCE = 1 << 20  # contacts


@dataclass(frozen=True)
class Graph:
    """Atoms, and which of them touch.

    Attributes:
        labels: ``(n,)`` ids, 0 for background.
        ends: ``(n,)`` whether an atom reaches the end of the image.
        edges: ``(m, 2)`` pairs of atoms of different ids that touch.
        sizes: ``(n,)`` pixels; None where they, and atoms that others do not depend on, were left
            out.
    """

    labels: np.ndarray
    ends: np.ndarray
    edges: np.ndarray
    sizes: np.ndarray | None


def enclosing(graph: Graph) -> tuple[np.ndarray, np.ndarray] | None:
    """The background atoms that an object encloses, and its id.

    Where several do, it is the one whose hole around the atom is the smallest; of equal ones the
    lowest id.

    Returns:
        Atoms, and an id for each; None if sizes would have to be known, and are not.
    """
    begin, neighbours = _adjacency(graph)
    safe = _reached_twice(graph, begin, neighbours)
    unsafe = np.flatnonzero(~safe).tolist()
    around = {i: neighbours[begin[i] : begin[i + 1]].tolist() for i in unsafe}
    label = {i: int(graph.labels[i]) for i in {*unsafe, *(j for a in around.values() for j in a)}}
    enclosed = _solve(around, label)
    holes = [i for i in unsafe if not label[i] and enclosed[i]]
    owners = np.zeros(len(holes), np.uint64)
    known: dict[int, dict[int, int]] = {}
    for position, i in enumerate(holes):
        found = enclosed[i]
        if len(found) > 1:
            if graph.sizes is None:
                return None
            for o in found - known.keys():
                known[o] = _hole_sizes(o, around, label, enclosed, graph.sizes)
        owners[position] = min(found, key=lambda o: (known[o][i] if o in known else 0, o))
    return np.array(holes, np.int64), owners


def _adjacency(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    n = len(graph.labels)
    rows = np.concatenate([graph.edges[:, 0], graph.edges[:, 1]])
    columns = np.concatenate([graph.edges[:, 1], graph.edges[:, 0]])
    matrix = coo_array((np.ones(len(rows), bool), (rows, columns)), shape=(n, n)).tocsr()
    return matrix.indptr, matrix.indices


def _reached_twice(graph: Graph, begin: np.ndarray, neighbours: np.ndarray) -> np.ndarray:
    """Atoms that stay within reach of the outside whatever other object is taken away.

    Such are those at the image's end, neighbours of background that is such, and neighbours of
    atoms of two different objects that are such. There may be others.
    """
    safe = graph.ends.copy()
    seen = np.zeros(len(safe), np.uint64)  # the one object that was found beside an atom
    front = np.flatnonzero(safe)
    while len(front):
        found = [np.zeros(0, np.int64)]
        for source, target in _contacts(front, begin, neighbours):
            waiting = ~safe[target]
            sure = _sure(target[waiting], graph.labels[source[waiting]], seen)
            safe[sure] = True
            found.append(sure)
        front = np.concatenate(found)
    return safe


def _contacts(
    front: np.ndarray, begin: np.ndarray, neighbours: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Atoms of a front and what they touch, pair by pair, some at a time."""
    stop = np.cumsum(begin[front + 1] - begin[front])
    for first in range(0, int(stop[-1]), _AT_ONCE):
        pair = np.arange(first, min(first + _AT_ONCE, int(stop[-1])))
        which = np.searchsorted(stop, pair, side="right")
        source = front[which]
        yield source, neighbours[begin[source + 1] - (stop[which] - pair)]


def _sure(target: np.ndarray, through: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Atoms that are reached through background, or a second object; first ones are noted."""
    order = np.lexsort((through, target))
    target, through = target[order], through[order]
    first = np.flatnonzero(np.diff(target, prepend=-1))
    if not len(first):
        return first
    found = target[first]
    lowest = through[first]
    highest = through[np.append(first[1:], len(through)) - 1]
    before = seen[found]
    sure = (lowest == 0) | (lowest != highest) | ((before > 0) & (before != lowest))
    seen[found[~sure]] = lowest[~sure]
    return np.asarray(found[sure], np.int64)


def _solve(around: dict[int, list[int]], label: dict[int, int]) -> dict[int, frozenset[int]]:
    """The objects that enclose each atom that is a key of ``around``, itself left out."""
    through: dict[int, frozenset[int]] = {}  # the same, itself included
    alone: dict[int, frozenset[int]] = {}

    def only(i: int) -> frozenset[int]:
        own = label[i]
        return alone.setdefault(own, frozenset((own,))) if own else _NONE

    def common(i: int) -> frozenset[int] | None:
        found: frozenset[int] | None = None
        for j in around[i]:
            way = through.get(j) if j in around else only(j)
            if way is not None:
                found = way if found is None else found & way
        return found

    queue = deque(i for i, others in around.items() if any(j not in around for j in others))
    waiting = set(queue)
    while queue:
        i = queue.popleft()
        waiting.discard(i)
        found = common(i)
        if found is None:
            continue
        own = only(i)
        new = found | own if own - found else found
        if new != through.get(i):
            through[i] = new
            for j in around[i]:
                if j in around and j not in waiting:
                    waiting.add(j)
                    queue.append(j)
    return {i: through.get(i, _NONE) - only(i) for i in around}


def _hole_sizes(
    owner: int,
    around: dict[int, list[int]],
    label: dict[int, int],
    enclosed: dict[int, frozenset[int]],
    sizes: np.ndarray,
) -> dict[int, int]:
    """Pixels of the hole of an object that each atom lies in, by atom."""
    found: dict[int, int] = {}
    for start in around:
        if start in found or owner not in enclosed[start]:
            continue
        hole, queue = {start}, [start]
        while queue:
            for j in _within(around[queue.pop()], label, owner):
                if j not in hole:
                    hole.add(j)
                    queue.append(j)
        size = int(sum(sizes[i] for i in hole))
        found |= dict.fromkeys(hole, size)
    return found


def _within(atoms: Iterable[int], label: dict[int, int], owner: int) -> list[int]:
    return [i for i in atoms if label[i] != owner]
