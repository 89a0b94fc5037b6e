"""Which views of neighbouring tiles are the same object: found from the shared zones alone.

A *view* is one label of one tile. Two tiles that share a zone have both looked at its pixels, so
agreement can be measured there:

* Views whose pixels in the zone agree (IoU of at least one half) are the same object. So are two
  views that are each other's best match and agree half as well, of which one covers half of the
  other: a thin object whose outline moved.
* A large object may enter the zone several times, and one tile may see the parts joined while the
  other sees them apart. Each view is therefore also cut into its face-connected pieces within the
  zone; views with a pair of pieces that agree are the same object. Two cells that one tile fused
  form one piece there and two pieces here, and agree with neither more than once.
* A view of which at least half was drawn by one view of the other tile, and which is not a whole
  object in its own tile's core, is a *remnant*: what an unsteady outline left of that object. It
  yields to the other view and links nothing.

A tile that saw an object whole knows its extent: it agrees with no view that lies mostly outside.
Sections that face each other across a cut without a halo are compared by the tile in whose core
the one before the cut begins: others may see either, or what competes with it, cut off.
If a segmentation function gives each object the same pixels in every window, every overlap is an
agreement and the merge is exact, for objects of any size and shape.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import cc3d
import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from cytopave.engine.scratch.tiles import shared_zone, zone_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cytopave.engine.scratch.tiles import OpenTiles
    from cytopave.engine.tiling import Grid

LINK = np.dtype(
    [
        ("tile_a", np.int32),
        ("view_a", np.int32),  # 1-based id within the tile
        ("tile_b", np.int32),
        ("view_b", np.int32),
        ("overlap", np.int64),  # pixels that both views hold
        ("agreement", np.float32),  # 0: not the same object; else how well they agree, up to 1
        ("yields", np.int8),  # 1: view a is a remnant of view b, 2: b of a, 0: neither
    ]
)

_AT_ONCE = 1 << 20  # pixels and views that are compared at once


class Merge(BaseModel):
    """When two tiles' labels are the same object."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: Annotated[
        Literal["iou", "touch"],
        Field(
            description="'iou': where the labels agree in the pixels that both tiles saw. "
            "'touch': where they share any pixel there; joins cells that touch, so only for "
            "structures that are connected by definition."
        ),
    ] = "iou"
    iou: Annotated[
        float,
        Field(ge=0.25, le=0.95, description="Least intersection over union that is agreement."),
    ] = 0.5


@dataclass(frozen=True)
class Side:
    """What one tile knows about a zone: its labels there and the table of its views."""

    zone: np.ndarray
    views: np.ndarray
    with_halo: int = 0xFF  # the bits of ``cut`` for axes that have one

    def decides(self, ids: np.ndarray) -> np.ndarray:
        """Of which objects the tile says what faces them: those that begin in its core.

        Of objects larger than the halo, which nobody sees whole, each tile whose core they touch.
        """
        views = self.views[ids - 1]
        large = (views["cut"] & self.with_halo != 0) & (views["core_area"] > 0)
        return np.asarray((views["first"] == views["first_core"]) | large)

    def complete(self, ids: np.ndarray) -> np.ndarray:
        """Whether the tile saw the whole of each object."""
        return np.asarray(self.views["cut"][ids - 1] == 0)

    def area(self, ids: np.ndarray) -> np.ndarray:
        """Pixels of each view in the tile's window."""
        return np.asarray(self.views["area"][ids - 1])

    def at_home(self, ids: np.ndarray) -> np.ndarray:
        """Whether at least half of each view lies in the tile's own core."""
        return np.asarray(2 * self.views["core_area"][ids - 1] >= self.views["area"][ids - 1])


def scan(opened: OpenTiles, grid: Grid, tiles: Iterable[int], merge: Merge) -> np.ndarray:
    """Compare tiles with those of their neighbours that come later in the grid.

    Over all tiles of a grid each zone is read exactly once.

    Returns:
        Rows of type ``LINK``: all pairs of views that share pixels or were found to be one object.

    Raises:
        CorruptError: A tile's file is missing or damaged.
    """
    rows = [np.zeros(0, LINK)]
    rows += [_compare_all(seams, merge) for seams in _alike(_seams(opened, grid, tiles))]
    return np.concatenate(rows)


@dataclass(frozen=True)
class Seam:
    """What two neighbouring tiles know about the zone that they share."""

    tile_a: int
    tile_b: int
    a: Side
    b: Side
    same_pixels: bool


def _seams(opened: OpenTiles, grid: Grid, tiles: Iterable[int]) -> Iterator[Seam]:
    for index in tiles:
        tile = grid[index]
        for step, other in grid.steps(tile):
            if other < index or shared_zone(grid, tile, step) is None:
                continue
            own, views = opened[index]
            theirs, their_views = opened[other]
            back = zone_name(tuple(-s for s in step))
            bare = any(s and not h for s, h in zip(step, grid.halo, strict=True))
            (zone,), (their_zone,) = own.read(zone_name(step)), theirs.read(back)
            with_halo = sum(3 << (2 * axis) for axis, h in enumerate(grid.halo) if h)
            sides = Side(zone, views, with_halo), Side(their_zone, their_views, with_halo)
            yield Seam(index, other, *sides, same_pixels=not bare)


def _alike(seams: Iterable[Seam]) -> Iterator[list[Seam]]:
    """Seams that are compared at once: as wide as each other, and of limited size in all."""
    waiting: defaultdict[tuple[int, ...], list[Seam]] = defaultdict(list)
    sizes: Counter[tuple[int, ...]] = Counter()
    for seam in seams:
        kind = (seam.same_pixels, *seam.a.zone.shape[1:])
        waiting[kind].append(seam)
        sizes[kind] += seam.a.zone.size + len(seam.a.views) + len(seam.b.views)
        if sizes[kind] >= _AT_ONCE:
            yield waiting.pop(kind)
            del sizes[kind]
    yield from waiting.values()


def _compare_all(seams: list[Seam], merge: Merge) -> np.ndarray:
    """Compare the two sides of several seams as if they were one: numpy's calls cost as much.

    The zones are laid one after another, their ids made distinct.
    """
    a, first_a = _stacked([s.a for s in seams])
    b, first_b = _stacked([s.b for s in seams])
    rows = compare(a, b, merge, same_pixels=seams[0].same_pixels)
    of_a = np.searchsorted(first_a, rows["view_a"]) - 1
    of_b = np.searchsorted(first_b, rows["view_b"]) - 1
    rows["tile_a"] = np.array([s.tile_a for s in seams])[of_a]
    rows["tile_b"] = np.array([s.tile_b for s in seams])[of_b]
    rows["view_a"] = rows["view_a"] - first_a[of_a]
    rows["view_b"] = rows["view_b"] - first_b[of_b]
    return rows


def _stacked(sides: list[Side]) -> tuple[Side, np.ndarray]:
    """One side for several, and the number of views before those of each."""
    first = np.cumsum([0, *(len(side.views) for side in sides[:-1])])
    zone = np.concatenate([side.zone for side in sides]).astype(np.uint32)
    shift = np.repeat(first.astype(np.uint32), [len(side.zone) for side in sides])
    shift = shift.reshape(-1, *[1] * (zone.ndim - 1))
    np.add(zone, shift, out=zone, where=zone > 0)
    views = np.concatenate([side.views for side in sides])
    return Side(zone, views, sides[0].with_halo), first


def compare(a: Side, b: Side, merge: Merge, *, same_pixels: bool) -> np.ndarray:
    """Compare two tiles' labels of one zone.

    Args:
        a: The earlier tile.
        b: The later tile; its zone has the same shape.
        merge: The rule.
        same_pixels: Whether the zones are the same pixels, or two planes that face each other.

    Returns:
        Rows of type ``LINK`` without the tiles' indices.
    """
    id_a, id_b, overlap = _overlaps(a.zone, b.zone)
    rows = np.zeros(len(id_a), LINK)
    rows["view_a"], rows["view_b"] = id_a, id_b
    if same_pixels:
        rows["overlap"] = overlap
    if merge.rule == "touch":
        rows["agreement"] = 1
        return rows
    # Two planes that face each other are not the same pixels: an object that ends near a seam has
    # a smaller section beyond it, so that being each other's best match must do.
    least = merge.iou / 2 if same_pixels else 0.0
    agreement = _labelwise(id_a, id_b, overlap, a.zone, b.zone, merge, least)
    unsure = agreement == 0
    agreement[unsure] = _piecewise(a.zone, b.zone, id_a[unsure], id_b[unsure], merge)
    rows["agreement"] = agreement
    if not same_pixels:
        rows = rows[rows["agreement"] > 0]
        # Others may see the section, or what it competes with, cut off by their window.
        return rows[a.decides(rows["view_a"])] if len(a.views) else rows
    _weigh(rows, a, b)
    return rows


def _weigh(rows: np.ndarray, a: Side, b: Side) -> None:
    """Correct the agreements by what each tile knows of the objects beyond the zone."""
    id_a, id_b, overlap = rows["view_a"], rows["view_b"], rows["overlap"]
    # Whoever saw an object whole knows that a view with more outside than inside is another one.
    more = a.complete(id_a) & (2 * overlap < b.area(id_b))
    more |= b.complete(id_b) & (2 * overlap < a.area(id_a))
    rows["agreement"][more] = 0
    apart = rows["agreement"] == 0
    rows["yields"][apart & _is_remnant(b, id_b, overlap)] = 2
    rows["yields"][apart & _is_remnant(a, id_a, overlap)] = 1


def _is_remnant(side: Side, ids: np.ndarray, overlap: np.ndarray) -> np.ndarray:
    whole_and_own = side.complete(ids) & side.at_home(ids)
    return np.asarray((2 * overlap >= side.area(ids)) & ~whole_and_own)


def _overlaps(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of labels that share pixels, and how many."""
    both = (a > 0) & (b > 0)
    packed = (a[both].astype(np.uint64) << np.uint64(32)) | b[both]
    # Of each run of equal pairs one is enough: there are far fewer runs to sort than pixels.
    start = np.flatnonzero(np.diff(packed, prepend=~packed[:1]))
    pairs, of_run = np.unique(packed[start], return_inverse=True)
    counts = np.bincount(of_run, np.diff(start, append=len(packed)), minlength=len(pairs))
    low = pairs & np.uint64(0xFFFFFFFF)
    return (pairs >> np.uint64(32)).astype(np.int64), low.astype(np.int64), counts.astype(np.int64)


def _sizes(zone: np.ndarray) -> np.ndarray:
    return np.bincount(zone.ravel())


def _labelwise(
    id_a: np.ndarray,
    id_b: np.ndarray,
    overlap: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    merge: Merge,
    least: float,
) -> np.ndarray:
    """IoU of each pair of labels where that is agreement, else 0.

    ``least`` is what suffices for views that are each other's best match.
    """
    size_a, size_b = _sizes(a), _sizes(b)
    iou = overlap / (size_a[id_a] + size_b[id_b] - overlap)
    best_a, best_b = np.zeros(len(size_a)), np.zeros(len(size_b))
    np.maximum.at(best_a, id_a, iou)
    np.maximum.at(best_b, id_b, iou)
    mutual = (iou == best_a[id_a]) & (iou == best_b[id_b])
    mutual &= 2 * overlap >= np.minimum(size_a[id_a], size_b[id_b])
    agree = (iou >= merge.iou) | (mutual & (iou >= least))
    return np.where(agree, iou, 0.0)


def _piecewise(
    a: np.ndarray, b: np.ndarray, id_a: np.ndarray, id_b: np.ndarray, merge: Merge
) -> np.ndarray:
    """Best IoU over the face-connected pieces of each pair of labels, 0 where that is too low."""
    if not len(id_a):
        return np.zeros(0)
    pieces_a, label_a = _pieces(a, id_a)
    pieces_b, label_b = _pieces(b, id_b)
    piece_a, piece_b, overlap = _overlaps(pieces_a, pieces_b)
    iou = overlap / (_sizes(pieces_a)[piece_a] + _sizes(pieces_b)[piece_b] - overlap)
    best = dict.fromkeys(zip(id_a.tolist(), id_b.tolist(), strict=True), 0.0)
    pairs = zip(label_a[piece_a].tolist(), label_b[piece_b].tolist(), strict=True)
    for pair, value in zip(pairs, iou.tolist(), strict=True):
        if pair in best:
            best[pair] = max(best[pair], value)
    found = np.array(list(best.values()))
    return np.where(found >= merge.iou, found, 0.0)


def _pieces(zone: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Face-connected pieces of the given labels, and the label that each piece belongs to."""
    wanted = np.zeros(int(zone.max()) + 1, bool)
    wanted[ids] = True
    kept = np.where(wanted[zone], zone, 0)
    # Face connectivity whatever the function's own: pieces of one pixel set are then the same
    # in both tiles even where diagonal contact joins them in only one.
    pieces, n = cc3d.connected_components(
        kept, connectivity=4 if zone.ndim == 2 else 6, return_N=True
    )
    labels = np.zeros(n + 1, np.int64)
    labels[pieces.ravel()] = kept.ravel()
    return pieces, labels
