"""The average of patches on a GPU, in Triton: bit for bit what torch does on a CPU.

Imported on CUDA devices only. Products and sums are kept apart (no fused multiply-add) and taken in
the order of the torch code beside it, so that both give the same numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton
import triton.language as tl

from cytopave.engine.patchwise.streams import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.patchwise.grid import Axis, Span


def launch(kernel: Any, arguments: tuple[Any, ...], **options: float) -> None:
    """Start a kernel that keeps products and sums apart."""
    kernel(*arguments, **options, enable_fp_fusion=False)


@triton.jit
def _add_patches(
    maps,
    taper,
    tops,
    lefts,
    total,
    rows,
    columns,
    height,
    width,
    channels,
    SIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Pixels of one row of one map: what each patch that covers them adds; see `average._sum`."""
    y = tl.program_id(0)
    first = tl.program_id(1) * BLOCK
    channel = tl.program_id(2).to(tl.int64)
    x = first + tl.arange(0, BLOCK)
    mine = x < width
    sums = tl.zeros([BLOCK], tl.float32)
    for j in range(rows):
        down = y - tl.load(tops + j)
        if (down >= 0) & (down < SIDE):
            weight_y = tl.load(taper + down)
            for i in range(columns):
                left = tl.load(lefts + i)
                if (left < first + BLOCK) & (left + SIDE > first):
                    across = x - left
                    inside = mine & (across >= 0) & (across < SIDE)
                    plane = channel + channels * (j * columns + i)
                    at = plane * (SIDE * SIDE) + down * SIDE + across
                    value = tl.load(maps + at, inside, 0.0).to(tl.float32)
                    weight = weight_y * tl.load(taper + across, inside, 0.0)
                    sums = tl.where(inside, sums + value * weight, sums)
    tl.store(total + (channel * height + y) * width + x, sums, mine)


def add_patches(
    maps: torch.Tensor, taper: torch.Tensor, axes: Sequence[Axis], spans: Sequence[Span]
) -> torch.Tensor:
    """Sum of tapered patches: `average._sum` on a CUDA device.

    Args:
        maps: ``(patches, channels, 256, 256)``, in raster order.
        taper: ``(256,)`` float32.
        axes: The grid along Y and X.
        spans: What is wanted of each.

    Returns:
        ``(channels, Y, X)`` float32.
    """
    starts, sizes = [], []
    for axis, span in zip(axes, spans, strict=True):
        own = np.array([axis.starts[k] - span.wanted[0] for k in span.patches], np.int32)
        starts.append(to_device(own, maps.device))
        sizes.append(span.wanted[1] - span.wanted[0])
    total = torch.empty((maps.shape[1], *sizes), dtype=torch.float32, device=maps.device)
    counts = (len(starts[0]), len(starts[1]))
    launch(
        _add_patches[(sizes[0], triton.cdiv(sizes[1], 256), len(total))],
        (maps, taper, *starts, total, *counts, *sizes, len(total)),
        SIDE=maps.shape[-1],
        BLOCK=256,
    )
    return total
