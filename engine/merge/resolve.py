"""From links to objects: which views form one object, who paints it, and its final id.

Linked views form clusters. A cluster in which some tile saw the object whole is painted by that
view alone: the one with the most of the object in its own core. A cluster that nobody saw whole
(the object is larger than the halo) is painted piece by piece, each tile within its core. What is
left over where tiles disagree follows one rule, *a tile is the authority on objects that lie
mostly in its core*: an unlinked view that lies mostly elsewhere is kept only if its tile saw it
whole and the tile there drew nothing in its place.

No cluster joins two views of one tile of which that tile saw one whole: it kept them apart and
knew what it saw. Two views of one tile that both leave its window may be joined by a neighbour
that sees them meet outside. Nor does a cluster join two whole views, each mostly in its own tile's
core, of which one is larger by half: an object lies mostly in one core, so these are two, and one
tile fused its own with another.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cytopave.engine.merge.untangle import untangle
from cytopave.engine.scratch.views import VIEW

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cytopave.engine.merge.links import Merge

HIDDEN, PIECE, WHOLE = np.uint8(0), np.uint8(1), np.uint8(2)

# What is kept of the table of views where tiles share pixels.
_BORDER = np.dtype([(n, VIEW[n]) for n in ("area", "core_area", "first_core", "cut")])

_SORTED_AT_ONCE = 1 << 23  # objects

# A cluster that loses this share of its pixels to others is a remnant; whoever keeps a quarter
# keeps at least one pixel, so that no final id is left without pixels.
_LOST = 0.75


@dataclass(frozen=True)
class Resolution:
    """What each view becomes.

    Attributes:
        offsets: ``(tiles + 1,)`` where the views of each tile begin in the other two arrays.
        final: ``(views,)`` final id, 0 where the view is not painted.
        mode: ``(views,)`` ``HIDDEN``, ``PIECE`` (paints its tile's core) or ``WHOLE`` (paints its
            tile's window).
        n_objects: Number of objects: the final ids are 1..n without gaps.
        n_joined: Number of objects that more than one tile had a part in.
        suspects: ``(rows, 2)`` the objects that hold two views which one tile kept apart: joined
            on a neighbour's word, and the first to look at for cells that were fused. A row for
            each tile that had a part: first pixel of the object in the raster order of the image,
            index of the tile.
    """

    offsets: np.ndarray
    final: np.ndarray
    mode: np.ndarray
    n_objects: int
    n_joined: int
    suspects: np.ndarray

    @property
    def n_suspects(self) -> int:
        """Number of suspect objects."""
        return len(np.unique(self.suspects[:, 0]))


def resolve(
    counts: np.ndarray,
    tables: Iterable[tuple[int, np.ndarray]],
    links: np.ndarray,
    merge: Merge,
) -> Resolution:
    """Decide about every view of a run.

    Args:
        counts: ``(tiles,)`` number of views of each tile.
        tables: Pairs of a tile's index and its table of type ``VIEW``; read once, in any order.
        links: Rows of type ``LINK`` of the whole run, in any order.
        merge: The rule that made the links.

    Returns:
        The same result for any order of the tables and links. Ids follow the raster order of the
        objects' first pixels.
    """
    offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    shared, ends = _shared_views(offsets, links)
    views = np.zeros(len(shared), _BORDER)
    mode = np.zeros(offsets[-1], np.uint8)
    first = np.full(offsets[-1], -1, np.int64)
    for index, table in tables:
        begin, end = offsets[index], offsets[index + 1]
        here = slice(*np.searchsorted(shared, (begin, end)))
        views[here] = table[shared[here] - begin][list(_BORDER.names or ())]
        # Views that met no other are objects as they stand, unless they were cut in a halo
        # where the tile that owns those pixels saw nothing.
        mode[begin:end] = np.where((table["cut"] == 0) | _at_home(table), WHOLE, HIDDEN)
        first[begin:end] = table["first"]
    tile = (np.searchsorted(offsets, shared, side="right") - 1).astype(np.int32)
    border = Border(tile, views, links, *ends, keeps_apart=merge.rule == "iou")
    cluster, border_mode = border.decide()
    mode[shared] = border_mode
    return _number(offsets, shared, cluster, mode, first, border)


def _shared_views(
    offsets: np.ndarray, links: np.ndarray
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """All views that occur in links, and the two ends of each link as indices into them."""
    a = offsets[links["tile_a"]] + links["view_a"] - 1
    b = offsets[links["tile_b"]] + links["view_b"] - 1
    shared, inverse = np.unique(np.concatenate([a, b]), return_inverse=True)
    inverse = inverse.astype(_narrow(len(shared)))
    return shared, (inverse[: len(a)], inverse[len(a) :])


def _narrow(n: int) -> type[np.signedinteger[Any]]:
    """The type for numbers of ``n`` views, with room for as many clusters: memory counts here."""
    return np.int32 if 2 * n < 2**31 else np.int64


def _at_home(views: np.ndarray) -> np.ndarray:
    return np.asarray(2 * views["core_area"] >= views["area"])


@dataclass(frozen=True)
class Border:
    """The views that share pixels with others: ``tile[i]`` and ``views[i]`` describe view i.

    Link i joins the views ``a[i]`` and ``b[i]``.
    """

    tile: np.ndarray
    views: np.ndarray
    links: np.ndarray
    a: np.ndarray
    b: np.ndarray
    keeps_apart: bool

    def decide(self) -> tuple[np.ndarray, np.ndarray]:
        """Cluster and mode of each view; a hidden view's cluster has no meaning."""
        cluster = self._clusters()
        mode = self._painters(cluster)
        self._attach_remnants(cluster, mode)
        self._hide_guests(cluster, mode)
        self._drop_covered(cluster, mode)
        return cluster, mode

    def _clusters(self) -> np.ndarray:
        n = len(self.views)
        linked = self.links["agreement"] > 0
        edges = (np.ones(int(linked.sum()), bool), (self.a[linked], self.b[linked]))
        _, cluster = connected_components(coo_array(edges, shape=(n, n)), directed=False)
        cluster = cluster.astype(_narrow(n))
        if not self.keeps_apart:
            return np.asarray(cluster)
        tangled = np.isin(cluster, self._tangled(cluster))
        if tangled.any():
            rows = np.flatnonzero(linked & tangled[self.a])
            rows = rows[np.lexsort((self.b[rows], self.a[rows], -self.links["agreement"][rows]))]
            groups = untangle(self, np.flatnonzero(tangled), rows)
            for number, group in enumerate(groups, start=n):
                cluster[group] = number
        return np.asarray(cluster)

    def _tangled(self, cluster: np.ndarray) -> np.ndarray:
        """Clusters that join what a tile kept apart, or hold views that the winner knows not."""
        complete = self.views["cut"] == 0
        order = np.lexsort((complete, self.tile, cluster))
        c, t = cluster[order], self.tile[order]
        twice = (c[1:] == c[:-1]) & (t[1:] == t[:-1]) & complete[order][1:]
        claims = np.flatnonzero(complete & _at_home(self.views))
        least = np.full(int(cluster.max(initial=-1)) + 1, np.iinfo(np.int64).max)
        most = np.zeros_like(least)
        np.minimum.at(least, cluster[claims], self.views["area"][claims])
        np.maximum.at(most, cluster[claims], self.views["area"][claims])
        contrary = np.flatnonzero(most > 1.5 * least)
        winner = self.winners(cluster)
        covered = np.zeros(len(cluster), bool)
        for x, y in ((self.a, self.b), (self.b, self.a)):
            by_winner = winner[cluster[x]] == y
            covered[x[by_winner & self.covers(x)]] = True
        known = covered | (winner[cluster] == np.arange(len(cluster)))
        unknown = cluster[(winner[cluster] >= 0) & ~known]
        return np.unique(np.concatenate([c[1:][twice], contrary, unknown]))

    def covers(self, x: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Whether at least half of view ``x`` of each link was drawn by the link's other view."""
        return np.asarray(2 * self.links["overlap"][rows] >= self.views["area"][x])

    def winners(self, cluster: np.ndarray) -> np.ndarray:
        """For each cluster the complete view with the largest part in its own core, or -1."""
        narrow = _narrow(len(self.views))
        winner = np.full(int(cluster.max(initial=-1)) + 1, -1, narrow)
        whole = np.flatnonzero(self.views["cut"] == 0).astype(narrow)
        order = whole[np.lexsort((-whole, self.views["core_area"][whole]))]
        winner[cluster[order]] = order
        if not self.keeps_apart:  # what touches is one object, and no view need know all of it
            winner[np.bincount(cluster) > 1] = -1
        return winner

    def _painters(self, cluster: np.ndarray) -> np.ndarray:
        winner = self.winners(cluster)
        members = np.bincount(cluster)
        alone = members[cluster] == 1
        mode = np.where(alone, np.where(_at_home(self.views), WHOLE, HIDDEN), PIECE)
        mode[winner[cluster] >= 0] = HIDDEN
        mode[winner[winner >= 0]] = WHOLE
        mode[(mode == PIECE) & (self.views["core_area"] == 0)] = HIDDEN
        return np.asarray(mode, np.uint8)

    def _attach_remnants(self, cluster: np.ndarray, mode: np.ndarray) -> None:
        """Views that agree with none and lie half within another yield to it.

        Where nobody saw that object whole, the remnant's pixels in its own core belong to it.
        """
        alone = np.bincount(cluster)[cluster] == 1
        a_yields = self.links["yields"] == 1
        rows = np.flatnonzero(self.links["yields"] > 0)
        x = np.where(a_yields, self.a, self.b)[rows]
        y = np.where(a_yields, self.b, self.a)[rows]
        order = np.lexsort((y, -self.links["overlap"][rows], x))
        x, y = x[order], y[order]
        best = np.concatenate([[True], x[1:] != x[:-1]])[: len(x)] & alone[x]
        x, y = x[best], y[best]
        mode[x] = HIDDEN
        firm = ~np.isin(y, x)
        x, y = x[firm], y[firm]
        pieces = (self.winners(cluster)[cluster[y]] < 0) & (self.views["core_area"][x] > 0)
        pieces &= (self.views["cut"][x] != 0) & (mode[y] != HIDDEN)
        mode[x[pieces]] = PIECE
        cluster[x[pieces]] = cluster[y[pieces]]

    def _hide_guests(self, cluster: np.ndarray, mode: np.ndarray) -> None:
        """Hide what lies mostly on other tiles' ground and contradicts what was drawn there."""
        guest = (mode == WHOLE) & ~_at_home(self.views)
        lost = np.zeros(len(mode), np.int64)
        for x, y in ((self.a, self.b), (self.b, self.a)):
            hit = guest[x] & (mode[y] != HIDDEN) & ~guest[y] & (cluster[x] != cluster[y])
            np.add.at(lost, x[hit], self.links["overlap"][hit])
        mode[guest & (2 * lost >= self.views["area"])] = HIDDEN

    def _drop_covered(self, cluster: np.ndarray, mode: np.ndarray) -> None:
        """Hide clusters of which others, that take precedence, would paint nearly everything."""
        loser, rival = self._contests()
        real = (mode[loser] != HIDDEN) & (mode[rival] != HIDDEN)
        real &= cluster[loser] != cluster[rival]
        loser, rival, overlap = loser[real], rival[real], self.links["overlap"][real]
        painted = np.where(mode == WHOLE, self.views["area"], self.views["core_area"])
        area = np.bincount(cluster, np.where(mode == HIDDEN, 0, painted))
        lost = np.bincount(cluster[loser], overlap, minlength=len(area))
        for c in np.flatnonzero((lost >= _LOST * area) & (area > 0)):
            mine = cluster[loser] == c
            if overlap[mine & (mode[rival] != HIDDEN)].sum() >= _LOST * area[c]:
                mode[cluster == c] = HIDDEN

    def _contests(self) -> tuple[np.ndarray, np.ndarray]:
        """For each link the view that loses shared pixels, and the one that gets them."""
        a_first = precedes(self.views[self.a], self.views[self.b], self.a < self.b)
        return np.where(a_first, self.b, self.a), np.where(a_first, self.a, self.b)


def precedes(a: np.ndarray, b: np.ndarray, tie: np.ndarray) -> np.ndarray:
    """Whether view ``a`` gets the pixels that it and ``b`` both claim: whole first, then small."""
    cut_a, cut_b = a["cut"] != 0, b["cut"] != 0
    smaller = np.where(a["area"] == b["area"], tie, a["area"] < b["area"])
    return np.asarray(np.where(cut_a == cut_b, smaller, cut_b))


def _number(
    offsets: np.ndarray,
    shared: np.ndarray,
    cluster: np.ndarray,
    mode: np.ndarray,
    first: np.ndarray,
    border: Border,
) -> Resolution:
    """Give every painted cluster its id: 1..n in raster order of the first pixels."""
    piece = mode[shared] == PIECE
    first[shared[piece]] = border.views["first_core"][piece]
    visible = mode[shared] != HIDDEN
    where, group = shared[visible], cluster[visible]
    leaders = _leaders(where, group, first)
    painted = mode != HIDDEN
    painted[where] = False
    painted[leaders[0]] = True
    n = int(np.count_nonzero(painted))
    final = np.zeros(len(mode), np.uint32 if n < 2**32 else np.uint64)
    begin = 1
    for chosen in _in_order(painted, first, n):
        final[chosen] = np.arange(begin, begin + len(chosen), dtype=final.dtype)
        begin += len(chosen)
    final[where] = final[leaders[0]][leaders[1]]
    joined = np.bincount(cluster)[group] > 1
    chosen = _kept_apart(group, border.tile[visible], len(offsets))
    objects = first[leaders[0]][leaders[1][chosen]]
    suspects = np.unique(np.stack([objects, border.tile[visible][chosen]], axis=1), axis=0)
    return Resolution(offsets, final, mode, n, len(np.unique(group[joined])), suspects)


def _kept_apart(group: np.ndarray, tile: np.ndarray, tiles: int) -> np.ndarray:
    """Indices of the views of those groups that hold two views of one tile."""
    keys = np.sort(group.astype(np.int64) * tiles + tile)
    groups = np.unique(keys[1:][keys[1:] == keys[:-1]] // tiles)
    return np.flatnonzero(np.isin(group, groups))


def _in_order(painted: np.ndarray, first: np.ndarray, n: int) -> Iterator[np.ndarray]:
    """The painted views by their first pixels, in parts that can be sorted in little memory."""
    parts = -(-n // _SORTED_AT_ONCE)
    step = max(1, n // (1000 * max(1, parts)))
    sample = np.sort(first[::step][painted[::step]])
    cuts = [sample[len(sample) * i // parts] for i in range(1, parts)] if len(sample) else []
    for low, high in pairwise([np.iinfo(np.int64).min, *cuts, np.iinfo(np.int64).max]):
        chosen = np.flatnonzero(painted & (first >= low) & (first < high))
        yield chosen[np.argsort(first[chosen], kind="stable")]


def _leaders(
    where: np.ndarray, group: np.ndarray, first: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The view with the first pixel of each group, and each view's group as an index into them."""
    order = np.lexsort((where, first[where], group))
    _, start, inverse = np.unique(group[order], return_index=True, return_inverse=True)
    position = np.empty(len(where), np.int64)
    position[order] = inverse
    return where[order][start], position
