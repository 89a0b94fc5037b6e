"""The mean of the patches' answers where they overlap."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from cytopave.engine.patchwise.grid import SIDE, taper
from cytopave.engine.patchwise.streams import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.patchwise.grid import Axis, Span


def average(maps: list[torch.Tensor], axes: Sequence[Axis], spans: Sequence[Span]) -> torch.Tensor:
    """Tapered mean of the patches over the wanted network pixels, ``(channels, Y, X)`` float32.

    Patches are added in raster order, one after the other: a sum with an order.

    Args:
        maps: What the network says to all patches of the spans, in raster order.
        axes: The grid along Y and X.
        spans: What is wanted of each.
    """
    device = maps[0].device
    weight = to_device(taper(), device)
    if device.type == "cuda":
        from cytopave.engine.patchwise.kernels import add_patches

        total = add_patches(torch.stack(maps), weight, axes, spans)
    else:
        total = _sum(maps, weight, axes, spans)
    rows, columns = (
        to_device(axis.weights(*span.wanted), device)
        for axis, span in zip(axes, spans, strict=True)
    )
    return total.div_(rows[:, None] * columns)


def _sum(
    maps: list[torch.Tensor], taper: torch.Tensor, axes: Sequence[Axis], spans: Sequence[Span]
) -> torch.Tensor:
    """Sum of the patches, each times its taper along both axes."""
    weight = taper[:, None] * taper
    (top, bottom), (left, right) = (s.wanted for s in spans)
    shape = (len(maps[0]), bottom - top, right - left)
    total = torch.zeros(shape, device=taper.device)
    for (j, i), own in zip(itertools.product(*(s.patches for s in spans)), maps, strict=True):
        y, x = axes[0].starts[j], axes[1].starts[i]
        rows = slice(max(0, top - y), min(SIDE, bottom - y))
        columns = slice(max(0, left - x), min(SIDE, right - x))
        target = total[:, max(y, top) - top : min(y + SIDE, bottom) - top]
        target = target[:, :, max(x, left) - left : min(x + SIDE, right) - left]
        target += own[:, rows, columns].to(torch.float32) * weight[rows, columns]
    return total
