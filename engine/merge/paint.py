"""Final labels of a tile's core, from its own labels and what its neighbours drew there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.merge.resolve import HIDDEN, WHOLE
from cytopave.engine.scratch import shared_zone, zone_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cytopave.engine.boxes import Box
    from cytopave.engine.merge.resolve import Resolution
    from cytopave.engine.scratch import Scratch
    from cytopave.engine.tiling import Grid, Tile


@dataclass(frozen=True)
class Layer:
    """Labels that one tile drew within a box, with the meaning of each label.

    Attributes:
        box: Where, in the image's coordinates.
        labels: The tile's labels of the box.
        final: Final id of each label, 0 where it is not painted here; entry 0 is background.
        rank: Order of precedence as ``(cut, area, view)``, one row a label.
    """

    box: Box
    labels: np.ndarray
    final: np.ndarray
    rank: np.ndarray


def paint(scratch: Scratch, grid: Grid, resolution: Resolution, index: int) -> np.ndarray:
    """Paint the core of a tile.

    Returns:
        Final ids of the core, ``([Z], Y, X)``. A pixel that several objects claim goes to an
        object that was seen whole before one that was not, then to the smaller one.

    Raises:
        CorruptError: A tile's file is missing or damaged.
    """
    tile = grid[index]
    own = _layer(scratch, resolution, tile, tile.core, "core", whole_only=False)
    guests = [g for g in _guests(scratch, grid, resolution, tile) if g.final.any()]
    out = np.asarray(own.final[own.labels])
    if not guests:
        return out
    layers = [own, *guests]
    ranks = _common_ranks(layers)
    best = ranks[0][own.labels]
    for layer, rank in zip(guests, ranks[1:], strict=True):
        here = layer.box.within(tile.core)
        claim, held = rank[layer.labels], best[here]
        wins = claim < held
        out[here][wins] = layer.final[layer.labels[wins]]
        held[wins] = claim[wins]
    return out


def _guests(scratch: Scratch, grid: Grid, resolution: Resolution, tile: Tile) -> Iterator[Layer]:
    for step, other in grid.neighbours(tile):
        zone = shared_zone(grid, tile, step)
        if zone is None or any(s and not h for s, h in zip(step, grid.halo, strict=True)):
            continue
        box = zone.intersect(tile.core)
        name = zone_name(tuple(-s for s in step))
        layer = _layer(scratch, resolution, other, zone, name, whole_only=True)
        yield Layer(box, layer.labels[box.within(zone)], layer.final, layer.rank)


def _layer(
    scratch: Scratch, resolution: Resolution, tile: Tile, box: Box, member: str, *, whole_only: bool
) -> Layer:
    views, labels = scratch.open(tile.index).read("views", member)
    begin, end = resolution.offsets[tile.index], resolution.offsets[tile.index + 1]
    mode = resolution.mode[begin:end]
    painted = mode == WHOLE if whole_only else mode != HIDDEN
    final = np.zeros(len(views) + 1, resolution.final.dtype)
    final[1:] = np.where(painted, resolution.final[begin:end], 0)
    rank = np.zeros((len(views) + 1, 3), np.int64)
    rank[1:, 0], rank[1:, 1] = views["cut"] != 0, views["area"]
    rank[1:, 2] = np.arange(begin, end)
    return Layer(box, labels, final, rank)


def _common_ranks(layers: list[Layer]) -> list[np.ndarray]:
    """One number a label, comparable between layers: the lower takes precedence."""
    rank = np.concatenate([layer.rank for layer in layers])
    order = np.lexsort((rank[:, 2], rank[:, 1], rank[:, 0]))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    # Background and labels that are not painted claim nothing.
    place[np.concatenate([layer.final for layer in layers]) == 0] = len(order)
    return np.split(place, np.cumsum([len(layer.final) for layer in layers])[:-1])
