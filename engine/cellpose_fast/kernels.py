"""What plain torch does too slowly on a GPU, in Triton: bit for bit what torch does on a CPU.

Imported on CUDA devices only. Products and sums are kept apart (no fused multiply-add) and taken in
the order of the torch code beside which each kernel stands, so that both give the same numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from cytopave.engine.patchwise.kernels import launch

if TYPE_CHECKING:
    from cytopave.engine.cellpose_fast.objects import Objects

LARGEST = 2**14
"""Pixels of an object up to which one group of threads spreads its heat; torch does larger ones."""

CHECK = {"BLOCK": 512, "num_warps": 8}
"""How many pixels of an object are done at once, and by how many threads / 32."""


@triton.jit
def _displace(
    flow_y,
    flow_x,
    start,
    moved,
    count,
    height,
    width,
    steps,
    BLOCK: tl.constexpr,
):
    """Each thread takes one pixel along the flows; see `dynamics._displace`."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mine = i < count
    y = tl.load(start + i, mine, 0)
    x = tl.load(start + count + i, mine, 0)
    low_y = -y.to(tl.float32)
    low_x = -x.to(tl.float32)
    high_y = (height - 1 - y).to(tl.float32)
    high_x = (width - 1 - x).to(tl.float32)
    moved_y = tl.zeros([BLOCK], tl.float32)
    moved_x = tl.zeros([BLOCK], tl.float32)
    for _ in range(steps):
        whole_y = tl.floor(moved_y)
        whole_x = tl.floor(moved_x)
        down = moved_y - whole_y
        right = moved_x - whole_x
        up = 1 - down
        left = 1 - right
        at_y = y + whole_y.to(tl.int32)
        at_x = x + whole_x.to(tl.int32)
        corner = at_y * width + at_x
        below = tl.where(at_y < height - 1, width, 0)
        beside = tl.where(at_x < width - 1, 1, 0)
        weight = up * left
        step_y = tl.load(flow_y + corner, mine, 0.0) * weight
        step_x = tl.load(flow_x + corner, mine, 0.0) * weight
        weight = up * right
        step_y += tl.load(flow_y + corner + beside, mine, 0.0) * weight
        step_x += tl.load(flow_x + corner + beside, mine, 0.0) * weight
        weight = down * left
        step_y += tl.load(flow_y + corner + below, mine, 0.0) * weight
        step_x += tl.load(flow_x + corner + below, mine, 0.0) * weight
        weight = down * right
        step_y += tl.load(flow_y + corner + below + beside, mine, 0.0) * weight
        step_x += tl.load(flow_x + corner + below + beside, mine, 0.0) * weight
        moved_y = tl.minimum(tl.maximum(moved_y + step_y, low_y), high_y)
        moved_x = tl.minimum(tl.maximum(moved_x + step_x, low_x), high_x)
    tl.store(moved + i, moved_y, mine)
    tl.store(moved + count + i, moved_x, mine)


def displace(flows: torch.Tensor, start: torch.Tensor, steps: int) -> torch.Tensor:
    """How far pixels move along flows: `dynamics._displace` on a CUDA device.

    Args:
        flows: ``(2, Y, X)`` float32.
        start: ``(2, pixels)``, row and column of each.
        steps: Number of steps.

    Returns:
        ``(2, pixels)`` float32.
    """
    flows = flows.contiguous()
    first = start.to(torch.int32).contiguous()
    count = first.shape[1]
    moved = torch.empty(first.shape, dtype=torch.float32, device=flows.device)
    if count:
        groups = (triton.cdiv(count, 128),)
        launch(
            _displace[groups],
            (flows[0], flows[1], first, moved, count, *flows.shape[1:], steps),
            BLOCK=128,
        )
    return moved


@triton.jit
def _step(direction: tl.constexpr, stride):
    """How far on in a picture the neighbour lies in a direction; see `flow_error._AROUND`."""
    below: tl.constexpr = (direction == 2) + (direction == 7) + (direction == 8)
    above: tl.constexpr = (direction == 1) + (direction == 5) + (direction == 6)
    right: tl.constexpr = (direction == 4) + (direction == 6) + (direction == 8)
    left: tl.constexpr = (direction == 3) + (direction == 5) + (direction == 7)
    return (below - above) * stride + (right - left)


@triton.jit
def _find_own(places, numbers, around, first, last, number, stride, BLOCK: tl.constexpr):
    """Of each pixel of one object, in one bit a direction: whether the neighbour is of it too."""
    for start in range(first, last, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mine = i < last
        at = tl.load(places + i, mine, 0)
        own = tl.zeros([BLOCK], tl.int32)
        for k in tl.static_range(1, 9):
            there = tl.load(numbers + at + _step(k, stride), mine, 0)
            own |= (there == number).to(tl.int32) << (k - 1)
        tl.store(around + i, own.to(tl.uint8), mine)
    tl.debug_barrier()


@triton.jit
def _spread(
    source_heat,
    target_heat,
    places,
    around,
    first,
    last,
    centre,
    stride,
    BLOCK: tl.constexpr,
):
    """One step of heat over one object, whose centre has just got one unit more."""
    for start in range(first, last, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mine = i < last
        at = tl.load(places + i, mine, 0)
        own = tl.load(around + i, mine, 0).to(tl.int32)
        total = tl.load(source_heat + at, mine, 0.0) + tl.where(at == centre, 1.0, 0.0)
        for k in tl.static_range(1, 9):
            there = at + _step(k, stride)
            linked = ((own >> (k - 1)) & 1) == 1
            lit = tl.where(linked & (there == centre), 1.0, 0.0)
            total += tl.load(source_heat + there, linked, 0.0) + lit
        tl.store(target_heat + at, total / 9, mine)
    # before any thread reads what another one wrote, or writes what another one reads
    tl.debug_barrier()


@triton.jit
def _beside(heat, at, own, direction: tl.constexpr, stride):
    """The heat of the neighbour in a direction; none if it is not of the object."""
    linked = ((own >> (direction - 1)) & 1) == 1
    return tl.load(heat + at + _step(direction, stride), linked, 0.0)


@triton.jit
def _check(
    flow_y,
    flow_x,
    heat,
    other,
    numbers,
    pixels,
    places,
    around,
    firsts,
    areas,
    centres,
    steps,
    totals,
    stride,
    most,
    SCALE: tl.constexpr,
    WORST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each group of threads checks one object: `flow_error._heat`, then the sum of its errors."""
    number = tl.program_id(0)
    area = tl.load(areas + number)
    if area <= most:
        first = tl.load(firsts + number)
        last = first + area
        centre = tl.load(places + tl.load(centres + number))
        _find_own(places, numbers, around, first, last, number + 1, stride, BLOCK)
        for _ in range(tl.load(steps + number) // 2):
            _spread(heat, other, places, around, first, last, centre, stride, BLOCK)
            _spread(other, heat, places, around, first, last, centre, stride, BLOCK)
        total = tl.zeros([BLOCK], tl.int64)
        for start in range(first, last, BLOCK):
            i = start + tl.arange(0, BLOCK)
            mine = i < last
            at = tl.load(places + i, mine, 0)
            own = tl.load(around + i, mine, 0).to(tl.int32)
            down = _beside(heat, at, own, 2, stride) - _beside(heat, at, own, 1, stride)
            right = _beside(heat, at, own, 4, stride) - _beside(heat, at, own, 3, stride)
            length = tl.sqrt(down * down + right * right) + 1e-60
            pixel = tl.load(pixels + i, mine, 0)
            away_y = down / length - tl.load(flow_y + pixel, mine, 0.0).to(tl.float64)
            away_x = right / length - tl.load(flow_x + pixel, mine, 0.0).to(tl.float64)
            error = tl.minimum(away_y * away_y + away_x * away_x, WORST) * SCALE
            # to whole numbers, halves to even ones: there is none between two in this range
            whole = ((error + 4503599627370496.0) - 4503599627370496.0).to(tl.int64)
            total += tl.where(mine, whole, 0)
        tl.store(totals + number, tl.sum(total, 0))


def error_sums(
    flows: torch.Tensor, objects: Objects, *, scale: float, worst: float
) -> torch.Tensor:
    """Sum of the errors of each object, `flow_error._sums` on CUDA; 0 above `LARGEST` pixels.

    The picture has a frame of one pixel, so that every pixel has all neighbours.

    Args:
        flows: ``(2, Y, X)`` float32.
        objects: The objects; their numbers of steps are even.
        scale: Errors are added as whole numbers of the ``scale``-th part.
        worst: Largest error of a pixel.

    Returns:
        Whole numbers, int64.
    """
    flows = flows.contiguous()
    height, width = objects.shape
    stride = width + 2
    places = (objects.pixels + 2 * (objects.pixels // width) + stride + 1).to(torch.int32)
    numbers = torch.zeros((height + 2) * stride, dtype=torch.int32, device=flows.device)
    numbers[places] = (objects.ids + 1).to(torch.int32)
    heat = torch.zeros((2, len(numbers)), dtype=torch.float64, device=flows.device)
    around = torch.empty(len(places), dtype=torch.uint8, device=flows.device)
    firsts = objects.area.cumsum(0) - objects.area
    lists = (firsts, objects.area, objects.sources(), objects.steps)
    totals = torch.zeros_like(objects.area)
    if len(objects):
        launch(
            _check[(len(objects),)],
            (
                *(flows[0], flows[1], heat[0], heat[1], numbers, objects.pixels, places, around),
                *(v.to(torch.int32) for v in lists),
                *(totals, stride, LARGEST),
            ),
            SCALE=scale,
            WORST=worst,
            **CHECK,
        )
    return totals
