"""The few clusters in which tiles contradict each other, taken apart link by link."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from cytopave.engine.merge.resolve import Border


def untangle(border: Border, members: np.ndarray, rows: np.ndarray) -> list[list[int]]:
    """Cluster views so that no cluster joins what one tile saw whole and kept apart.

    The best agreements are honoured first. A cluster with a complete view keeps only the views
    that this view, or a view that it accounts for, covers by half; the others are clustered again
    without it.

    Args:
        border: The views and links.
        members: Views of the tangled clusters.
        rows: Their links, best first.

    Returns:
        The clusters, each a list of views.
    """
    done: list[list[int]] = []
    pending = [(members.tolist(), rows.tolist())]
    while pending:
        views, links = pending.pop()
        groups = _constrained(border, views, links)
        for group, own in zip(groups, _inside(border, groups, links), strict=True):
            kept = _accounted(border, group, own)
            done.append(kept)
            left = sorted(set(group) - set(kept))
            if left:
                pending.append((left, _inside(border, [left], own)[0]))
    return done


def _inside(border: Border, groups: list[list[int]], links: list[int]) -> list[list[int]]:
    """The links of each group: those whose two ends are both in it."""
    group_of = {v: i for i, group in enumerate(groups) for v in group}
    inside: list[list[int]] = [[] for _ in groups]
    for row in links:
        i = group_of.get(int(border.a[row]))
        if i is not None and i == group_of.get(int(border.b[row])):
            inside[i].append(row)
    return inside


@dataclass(frozen=True)
class _Group:
    """Views taken for one object so far, and what its tiles know of it."""

    views: list[int]
    complete_in: dict[int, bool]  # tile -> whether it saw one of these views whole
    claims: list[int]  # areas of the whole views that lie mostly in their own tile's core

    def contradicts(self, other: _Group) -> bool:
        """Whether joining the two would join what a tile kept apart."""
        shared = self.complete_in.keys() & other.complete_in.keys()
        if any(self.complete_in[t] or other.complete_in[t] for t in shared):
            return True
        claims = self.claims + other.claims
        return bool(claims) and max(claims) > 1.5 * min(claims)

    def joined(self, other: _Group) -> _Group:
        views, claims = self.views + other.views, self.claims + other.claims
        return _Group(views, self.complete_in | other.complete_in, claims)


def _constrained(border: Border, views: list[int], links: list[int]) -> list[list[int]]:
    """Union of linked views, best links first, refusing those that contradict a tile."""
    group_of = {v: _single(border, v) for v in views}
    for row in links:
        x, y = group_of[int(border.a[row])], group_of[int(border.b[row])]
        if x is not y and not x.contradicts(y):
            union = x.joined(y)
            group_of.update(dict.fromkeys(union.views, union))
    return [g.views for g in {id(g): g for g in group_of.values()}.values()]


def _single(border: Border, v: int) -> _Group:
    view = border.views[v]
    complete = bool(view["cut"] == 0)
    claims = [int(view["area"])] if complete and 2 * view["core_area"] >= view["area"] else []
    return _Group([v], {int(border.tile[v]): complete}, claims)


def _accounted(border: Border, group: list[int], links: list[int]) -> list[int]:
    """The views of a group that its complete view accounts for: all, if there is none."""
    whole = [v for v in group if border.views["cut"][v] == 0]
    if not whole:
        return group
    winner = max(whole, key=lambda v: (int(border.views["core_area"][v]), -v))
    covered_by = defaultdict(list)
    for row in links:
        x, y = int(border.a[row]), int(border.b[row])
        for low, high in ((x, y), (y, x)):
            if 2 * border.links["overlap"][row] >= border.views["area"][low]:
                covered_by[high].append(low)
    kept, queue = {winner}, [winner]
    while queue:
        new = [v for v in covered_by[queue.pop()] if v not in kept]
        kept.update(new)
        queue += new
    return sorted(kept)
