"""From flows to objects: pixels follow the flows, and those that meet are one object.

The method is Cellpose's (Stringer et al. 2021, Nature Methods 18, 100-106). What differs is that no
number depends on the tile. Cellpose scales positions by the size of the array, so that the same
flows give other sums in another tile; here a pixel keeps its displacement, which knows no origin.
Where two candidates are equal, the one that comes first in the image wins, in every tile.

All of it is counting and gathering over arrays, with no loop over objects, and every sum is taken
in an order that is fixed: a run gives the same bits again, on a CPU and on a GPU alike.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

MEET = 10
"""More pixels than this must end on a seed."""
JOIN = 2
"""More pixels than this must end on a place that a seed's object takes in."""
REACH = 5
"""How far an object's places reach from its seed, in steps of one pixel."""


def follow(flows: torch.Tensor, foreground: torch.Tensor, steps: int) -> torch.Tensor:
    """Where the foreground pixels are after ``steps`` steps along the flows.

    Args:
        flows: ``(2, Y, X)`` float32, pixels a step; zero outside the foreground.
        foreground: Flat indices of the pixels that move, int64, ascending.
        steps: Number of steps.

    Returns:
        Flat index of the pixel in which each one ends, int64.
    """
    width = flows.shape[2]
    start = torch.stack([foreground // width, foreground % width])
    if flows.is_cuda:
        from cytopave.engine.cellpose_fast.kernels import displace

        moved = displace(flows, start, steps)
    else:
        moved = _displace(flows, start, steps)
    y, x = start + moved.floor().to(torch.int64)
    return y * width + x


def _displace(flows: torch.Tensor, start: torch.Tensor, steps: int) -> torch.Tensor:
    """How far each pixel has moved, ``(2, pixels)`` float32."""
    # both components in one number: half the gathers
    field = torch.view_as_complex(flows.permute(1, 2, 0).contiguous()).flatten()
    last = torch.tensor(flows.shape[1:], device=flows.device)[:, None] - 1
    low, high = -start.to(torch.float32), (last - start).to(torch.float32)
    start, last = start.to(torch.int32), last.to(torch.int32)
    moved = torch.zeros_like(low)
    for _ in range(steps):
        moved += _sample(field, start, moved, last)
        torch.clamp(moved, low, high, out=moved)
    return moved


def _sample(
    field: torch.Tensor, start: torch.Tensor, moved: torch.Tensor, last: torch.Tensor
) -> torch.Tensor:
    """The flow at the pixels' places by bilinear weights, ``(2, pixels)``.

    A displacement is split into whole pixels and a rest, so that neither place nor weight is
    rounded by how far the pixel is from the array's corner.
    """
    whole = moved.floor()
    down, right = moved - whole
    up, left = 1 - down, 1 - right
    at = start + whole.to(torch.int32)
    width = last[1] + 1
    corner = at[0] * width + at[1]
    # behind the last row and column there is nothing, and the weight is zero
    below = (at[0] < last[0]) * width
    beside = (at[1] < last[1]).to(torch.int32)
    flow = field.index_select(0, corner) * (up * left)
    flow += field.index_select(0, corner + beside) * (up * right)
    flow += field.index_select(0, corner + below) * (down * left)
    flow += field.index_select(0, corner + below + beside) * (down * right)
    return torch.view_as_real(flow).T


def meet(ends: torch.Tensor, shape: tuple[int, int]) -> tuple[torch.Tensor, int]:
    """Number the pixels by where they end.

    A seed is a place where more than 10 pixels end, and no place within two pixels has more. An
    object takes in, from its seed, up to five steps of places in which more than two pixels end;
    of two that want a place, the one whose seed has more takes it, then the later one.

    Args:
        ends: Flat index of the pixel in which each pixel ends.
        shape: ``(Y, X)``.

    Returns:
        Number of the object of each pixel, int32, 0 where it is of none, and how many there are.
    """
    height, width = shape
    pad = REACH
    padded = width + 2 * pad
    at = (ends // width + pad) * padded + ends % width + pad
    counts = torch.bincount(at, minlength=(height + 2 * pad) * padded)
    seeds = _seeds(counts.view(-1, padded))
    places, owners = _grow(counts, seeds, padded)
    taken = torch.zeros(len(counts), dtype=torch.int32, device=ends.device)
    taken.scatter_reduce_(0, places, owners, "amax")
    return taken[at], len(seeds)


def _seeds(counts: torch.Tensor) -> torch.Tensor:
    """Flat indices of the seeds, by how many pixels end there and then in raster order."""
    ended = counts[None].to(torch.float32)
    most = F.max_pool2d(ended, 5, 1, 2)
    seeds = ((ended == most) & (ended > MEET)).flatten().nonzero().squeeze(1)
    return seeds[counts.flatten()[seeds].argsort(stable=True)]


def _grow(
    counts: torch.Tensor, seeds: torch.Tensor, padded: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The places that each seed's object wants, and whose they would be, counted from 1."""
    offsets = torch.arange(-REACH, REACH + 1, device=seeds.device)
    around = seeds[:, None] + (offsets[:, None] * padded + offsets).flatten()
    side = len(offsets)
    joined = (counts[around] > JOIN).view(-1, 1, side, side).to(torch.float32)
    grown = torch.zeros_like(joined)
    grown[:, :, REACH, REACH] = 1
    for _ in range(REACH):
        grown = F.max_pool2d(grown, 3, 1, 1) * joined
    seed, place = grown.flatten(1).nonzero(as_tuple=True)
    return around[seed, place], (seed + 1).to(torch.int32)
