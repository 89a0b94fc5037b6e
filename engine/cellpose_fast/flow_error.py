"""The check of the flows: would these objects, if true, have made the network see these flows?

Cellpose trains its network on flows that lead, in every object, away from heat that spreads from
its centre. An object that was found is given such flows anew, and is dropped where they differ too
much from those that it was found by. Here each object is by itself: heat of its own, as many steps
as its own size asks for (Cellpose: as the largest object of the array asks for), and nothing of a
neighbour that touches it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from cytopave.engine.cellpose_fast.objects import Objects

# The pixel itself, then those around it: the order in which heat is added up.
_AROUND = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))
_SCALE = 2.0**20
"""Errors are added as whole numbers of this fraction: a sum without an order."""
_WORST = 2.0**16
AT_ONCE = 2**20
"""Pixels of objects that are checked at a time, or one object's: 150 bytes are held for each."""


def flow_errors(flows: torch.Tensor, objects: Objects) -> torch.Tensor:
    """Mean squared difference of an object's flows and those that its shape would give.

    Args:
        flows: ``(2, Y, X)`` float32, the network's, of length about 1.
        objects: Which pixels are one object.

    Returns:
        One number an object, float64.
    """
    total = _on_cuda(flows, objects) if flows.is_cuda else _in_groups(flows, objects)
    return total.double() / _SCALE / objects.area


def _on_cuda(flows: torch.Tensor, objects: Objects) -> torch.Tensor:
    """Sums as of `_sums`."""
    from cytopave.engine.cellpose_fast import kernels

    total = kernels.error_sums(flows, objects, scale=_SCALE, worst=_WORST)
    large = objects.area > kernels.LARGEST
    if large.any():
        total[large] = _in_groups(flows, objects.where(large))
    return total


def _in_groups(flows: torch.Tensor, objects: Objects) -> torch.Tensor:
    """Sums as of `_sums`, of so many objects at once that memory stays bounded."""
    if len(objects.pixels) <= AT_ONCE:
        return _sums(flows, objects)
    total = torch.zeros_like(objects.area)
    group = (objects.area.cumsum(0) - objects.area) // AT_ONCE
    for number in group.unique().tolist():
        own = group == number
        total[own] = _sums(flows, objects.where(own))
    return total


def _sums(flows: torch.Tensor, objects: Objects) -> torch.Tensor:
    """Sum of the errors of each object in units of 1 / `_SCALE`, int64."""
    heat = _heat(objects)
    expected = heat / (heat.square().sum(0).sqrt() + 1e-60)
    own = flows.flatten(1)[:, objects.pixels]
    error = (expected - own).square().sum(0).clamp(max=_WORST)
    whole = (error.double() * _SCALE).round().to(torch.int64)
    return torch.zeros_like(objects.area).index_add_(0, objects.ids, whole)


def _heat(objects: Objects) -> torch.Tensor:
    """Gradient of the heat at each pixel, ``(2, pixels)`` float64.

    In each step one unit is added at an object's centre, and every pixel takes the mean of the
    nine pixels around it, of which those of other objects are cold. In a long thin object little
    heat arrives at the ends: hence 64 bits.
    """
    links = _links(objects)
    # one place more, always cold, stands for everything that is not of the object
    heat = torch.zeros(len(objects.pixels) + 1, dtype=torch.float64, device=links.device)
    _diffuse(heat, objects, links)
    _, up, down, left, right = (heat[link] for link in links[:5])
    return torch.stack([down - up, right - left])


def _links(objects: Objects) -> torch.Tensor:
    """``(9, pixels)`` int32: where each pixel's neighbours stand in the list of pixels.

    What is not of the same object stands behind the last pixel.
    """
    height, width = objects.shape
    padded = width + 2
    nobody = len(objects.pixels)
    at = objects.pixels + 2 * (objects.pixels // width) + padded + 1
    place = torch.full(((height + 2) * padded,), nobody, dtype=torch.int32, device=at.device)
    place[at] = torch.arange(nobody, dtype=torch.int32, device=at.device)
    ids = torch.cat([objects.ids, objects.ids.new_full((1,), -1)])
    links = torch.empty((len(_AROUND), nobody), dtype=torch.int32, device=at.device)
    for link, (dy, dx) in zip(links, _AROUND, strict=True):
        there = place[at + dy * padded + dx]
        link[:] = torch.where(ids[there] == objects.ids, there, nobody)
    return links


def _diffuse(heat: torch.Tensor, objects: Objects, links: torch.Tensor) -> None:
    """Spread heat in all objects, in place."""
    sources, steps = objects.sources(), objects.steps
    # A tensor: by a plain number PyTorch multiplies with its inverse on CUDA. What heat there is on
    # both sides of a pixel is the same but for rounding where an object is symmetric.
    pixels = torch.tensor(len(_AROUND), dtype=heat.dtype, device=heat.device)
    done = 0
    for end in steps.unique().tolist():
        going = (steps >= end)[objects.ids].nonzero().squeeze(1)
        around = links[:, going].contiguous()
        lit = sources[steps >= end]
        for _ in range(done, end):
            heat[lit] += 1
            total = heat.index_select(0, around[0])
            for link in around[1:]:
                total += heat.index_select(0, link)
            heat[going] = total / pixels
        done = end
