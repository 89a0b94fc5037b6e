"""From flows to objects in three dimensions: what `dynamics` does in two, voxel by voxel.

Stacks are large and their objects few, so nothing here is as long as the stack that need not be:
voxels move in blocks, and seeds are looked for only where voxels end.
"""

from __future__ import annotations

import itertools

import torch
from torch.nn import functional as F

from cytopave.engine.cellpose_fast.dynamics import JOIN, MEET, REACH
from cytopave.engine.cellpose_fast.objects import places

_APART = 2
"""No place within so many steps of a seed has more voxels that end there."""
_MOVED_AT_ONCE = {"cpu": 1 << 16, "cuda": 1 << 22}
"""Voxels: what a CPU's caches hold, what fills a GPU."""
_COMPARED_AT_ONCE = 1 << 18
"""Places: each looks at the 125 within two steps."""
_GROWN_AT_ONCE = 1 << 12
"""Seeds: each looks at 11 x 11 x 11 places."""


def follow(
    flows: torch.Tensor, shape: tuple[int, ...], foreground: torch.Tensor, steps: int
) -> torch.Tensor:
    """Where the foreground voxels are after ``steps`` steps along the flows.

    Args:
        flows: ``(Z * Y * X, 3)`` float32, voxels a step along Z, Y and X; zero outside the
            foreground.
        shape: ``(Z, Y, X)``.
        foreground: Flat indices of the voxels that move, int64, ascending.
        steps: Number of steps.

    Returns:
        Flat index of the voxel in which each one ends, int64.
    """
    ends = torch.empty_like(foreground)
    step = _MOVED_AT_ONCE[flows.device.type]
    for first in range(0, len(foreground), step):
        start = torch.stack(places(foreground[first : first + step], shape))
        z, y, x = start + _displace(flows, shape, start, steps).floor().to(torch.int64)
        ends[first : first + step] = (z * shape[1] + y) * shape[2] + x
    return ends


def _displace(
    field: torch.Tensor, shape: tuple[int, ...], start: torch.Tensor, steps: int
) -> torch.Tensor:
    """How far each voxel has moved, ``(3, voxels)`` float32."""
    last = torch.tensor(shape, device=field.device)[:, None] - 1
    low, high = -start.to(torch.float32), (last - start).to(torch.float32)
    start, last = start.to(torch.int32), last.to(torch.int32)
    moved = torch.zeros_like(low)
    for _ in range(steps):
        moved += _sample(field, shape, start, moved, last)
        torch.clamp(moved, low, high, out=moved)
    return moved


def _sample(
    field: torch.Tensor,
    shape: tuple[int, ...],
    start: torch.Tensor,
    moved: torch.Tensor,
    last: torch.Tensor,
) -> torch.Tensor:
    """The flow at the voxels' places by trilinear weights, ``(3, voxels)``.

    Split as in `dynamics`: neither place nor weight is rounded by where in the array a voxel is.
    """
    whole = moved.floor()
    upper = moved - whole
    share = (1 - upper, upper)
    at = start + whole.to(torch.int32)
    # behind the last plane, row and column there is nothing, and the weight is zero
    beyond = (at < last).to(torch.int32)
    strides = (shape[1] * shape[2], shape[2], 1)
    corner = at[0] * strides[0] + at[1] * strides[1] + at[2]
    further = [b * s for b, s in zip(beyond, strides, strict=True)]
    flow = torch.zeros((moved.shape[1], 3), device=field.device)
    for dz, dy, dx in itertools.product((0, 1), repeat=3):
        place = corner + dz * further[0] + dy * further[1] + dx * further[2]
        weight = share[dz][0] * share[dy][1] * share[dx][2]
        flow += field.index_select(0, place) * weight[:, None]
    return flow.T


def meet(ends: torch.Tensor, shape: tuple[int, ...]) -> tuple[torch.Tensor, int]:
    """Number the voxels by where they end, by the rules of `dynamics.meet`.

    Args:
        ends: Flat index of the voxel in which each voxel ends.
        shape: ``(Z, Y, X)``.

    Returns:
        Number of the object of each voxel, int32, 0 where it is of none, and how many there are.
    """
    _, rows, columns = (n + 2 * REACH for n in shape)
    z, y, x = (place + REACH for place in places(ends, shape))
    at = (z * rows + y) * columns + x
    size = (shape[0] + 2 * REACH) * rows * columns
    counts = torch.zeros(size, dtype=torch.int32, device=ends.device)
    counts.index_add_(0, at, torch.ones_like(at, dtype=torch.int32))
    seeds = _seeds(counts, rows, columns)
    taken = torch.zeros_like(counts)
    for first in range(0, len(seeds), _GROWN_AT_ONCE):
        some = seeds[first : first + _GROWN_AT_ONCE]
        wanted, owners = _grow(counts, some, first, rows, columns)
        taken.scatter_reduce_(0, wanted, owners, "amax")
    return taken[at], len(seeds)


def _cube(reach: int, rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Distances in memory to all places within ``reach`` of a place, in raster order."""
    steps = torch.arange(-reach, reach + 1, device=device)
    return ((steps[:, None, None] * rows + steps[:, None]) * columns + steps).flatten()


def _seeds(counts: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Flat indices of the seeds, by how many voxels end there and then in raster order."""
    seeds = (counts > MEET).nonzero().squeeze(1)
    near = _cube(_APART, rows, columns, counts.device)
    most = [counts[some[:, None] + near].amax(1) for some in seeds.split(_COMPARED_AT_ONCE)]
    seeds = seeds[counts[seeds] == torch.cat(most)]
    return seeds[counts[seeds].argsort(stable=True)]


def _grow(
    counts: torch.Tensor, seeds: torch.Tensor, before: int, rows: int, columns: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The places that seeds' objects want, and whose they would be, counted from ``before`` + 1."""
    around = seeds[:, None] + _cube(REACH, rows, columns, seeds.device)
    side = 2 * REACH + 1
    joined = (counts[around] > JOIN).view(-1, 1, side, side, side).to(torch.float32)
    grown = torch.zeros_like(joined)
    grown[:, :, REACH, REACH, REACH] = 1
    for _ in range(REACH):
        grown = F.max_pool3d(grown, 3, 1, 1) * joined
    seed, place = grown.flatten(1).nonzero(as_tuple=True)
    return around[seed, place], (seed + before + 1).to(torch.int32)
