"""What plain torch does too slowly on a GPU, in Triton: bit for bit what torch does on a CPU.

Imported on CUDA devices only. Products and sums are kept apart (no fused multiply-add) and taken in
the order of the torch code beside which each kernel stands, so that both give the same numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from cytopave.engine.cellpose_fast.objects import Objects

LARGEST = 2**14
"""Pixels of an object up to which one group of threads spreads its heat; torch does larger ones."""


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
        _launch(
            _displace[groups],
            (flows[0], flows[1], first, moved, count, *flows.shape[1:], steps),
            BLOCK=128,
        )
    return moved


@triton.jit
def _spread(
    source_heat,
    target_heat,
    links,
    first,
    last,
    centre,
    pixels,
    BLOCK: tl.constexpr,
):
    """One step of heat over one object, whose centre has just got one unit more."""
    for at in range(first, last, BLOCK):
        i = at + tl.arange(0, BLOCK)
        mine = i < last
        link = tl.load(links + i, mine, pixels)
        total = tl.load(source_heat + link, mine, 0.0) + tl.where(link == centre, 1.0, 0.0)
        for k in tl.static_range(1, 9):
            link = tl.load(links + k * pixels + i, mine, pixels)
            total += tl.load(source_heat + link, mine, 0.0) + tl.where(link == centre, 1.0, 0.0)
        tl.store(target_heat + i, total / 9, mine)
    # before any thread reads what another one wrote, or writes what another one reads
    tl.debug_barrier()


@triton.jit
def _diffuse(
    heat,
    other,
    links,
    firsts,
    areas,
    centres,
    steps,
    pixels,
    most,
    BLOCK: tl.constexpr,
):
    """Each group of threads spreads the heat of one object; see `flow_error._diffuse`."""
    number = tl.program_id(0)
    area = tl.load(areas + number)
    if area <= most:
        first = tl.load(firsts + number)
        centre = tl.load(centres + number)
        for _ in range(tl.load(steps + number) // 2):
            _spread(heat, other, links, first, first + area, centre, pixels, BLOCK)
            _spread(other, heat, links, first, first + area, centre, pixels, BLOCK)


def diffuse(heat: torch.Tensor, objects: Objects, links: torch.Tensor) -> None:
    """Spread heat in all objects of at most `LARGEST` pixels: `flow_error._diffuse` on CUDA.

    Args:
        heat: ``(pixels + 1,)`` float64, all zero; changed.
        objects: The objects; their numbers of steps are even.
        links: ``(9, pixels)`` int32, where each pixel's neighbours stand.
    """
    firsts = objects.area.cumsum(0) - objects.area
    lists = (firsts, objects.area, objects.sources(), objects.steps)
    arguments = (heat, torch.zeros_like(heat), links, *(v.to(torch.int32) for v in lists))
    if len(objects):
        _launch(_diffuse[(len(objects),)], (*arguments, links.shape[1], LARGEST), BLOCK=512)


def _launch(kernel: Any, arguments: tuple[Any, ...], **constants: int) -> None:
    kernel(*arguments, **constants, enable_fp_fusion=False)
