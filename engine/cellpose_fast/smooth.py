"""A Gaussian filter that knows where in the image it is: the flows of stacks may be smoothed.

It is scipy's `gaussian_filter` as Cellpose calls it: cut off at four standard deviations, mirrored
at the borders of the image. At the borders of a window it takes what lies beyond.
"""

from __future__ import annotations

import numpy as np
import torch

from cytopave.engine.cellpose_fast.passes import reach


def smoothed(
    values: torch.Tensor,
    dim: int,
    sigma: float,
    *,
    length: int,
    held: tuple[int, int],
    wanted: tuple[int, int],
) -> torch.Tensor:
    """Smooth along one axis.

    Args:
        values: Any shape, float32.
        dim: The axis.
        sigma: Standard deviation in pixels.
        length: Pixels of the whole image along the axis.
        held: First and last (exclusive) of the image's pixels that ``values`` hold there.
        wanted: Those to smooth; all that lies within `reach` of them is held.

    Returns:
        The wanted pixels; summed in an order that is the same everywhere.
    """
    away = reach(sigma)
    count = wanted[1] - wanted[0]
    at = np.arange(wanted[0] - away, wanted[1] + away) % (2 * length)
    at = np.minimum(at, 2 * length - 1 - at) - held[0]
    values = values.index_select(dim, torch.from_numpy(at).to(values.device))
    offsets = np.arange(-away, away + 1)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2)
    total = torch.zeros_like(values.narrow(dim, 0, count))
    for start, weight in enumerate((weights / weights.sum()).tolist()):
        total += values.narrow(dim, start, count) * weight
    return total
