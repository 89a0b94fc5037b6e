"""Cellpose 3 and 4 behind one function: build a network, evaluate a tile.

Both are called through their public `CellposeModel`. What is common to both lives here; what the
two disagree on lives in `cellpose_v3` and `cellpose_v4`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.segmenters.objects import drop_small
from cytopave.engine.segmenters.torch_device import torch_device

if TYPE_CHECKING:
    from pathlib import Path

    from cytopave.engine.segmenters.cellpose_common import Built, Evaluation, Ranges
    from cytopave.engine.segmenters.cellpose_weights import Network
    from cytopave.engine.segmenters.torch_device import Device


def build(path: Path, network: Network, *, device: Device, bfloat16: bool) -> Built:
    """Build a network and load its weights.

    Raises:
        SegmenterError: No such device, or the file lacks tensors that the network has.
    """
    _settle_sparse_checks()
    if network.generation == 3:
        from cytopave.engine.segmenters.cellpose_v3 import CellposeV3

        return CellposeV3.build(path, network, torch_device(device))
    from cytopave.engine.segmenters.cellpose_v4 import CellposeV4

    return CellposeV4.build(path, network, torch_device(device), bfloat16=bfloat16)


def _settle_sparse_checks() -> None:
    """Say what is the default, that sparse tensors go unchecked: PyTorch warns until it is said."""
    import torch

    checks = torch.sparse.check_sparse_tensor_invariants
    if not checks.is_enabled():
        checks.disable()


def prepared(tile: np.ndarray, ranges: Ranges) -> np.ndarray:
    """A float32 copy ``(C, [Z], Y, X)`` of a tile without values that are not finite.

    A NaN would spread over every patch that holds it. NaN and minus infinity become the low end
    of the channel's range, infinity the high end.
    """
    if len(ranges) == 1:
        tile = tile[np.newaxis]
    # a copy always: Cellpose 4 normalises a float32 array in place
    image = np.array(tile, dtype=np.float32, order="C")
    if np.issubdtype(tile.dtype, np.floating):
        for channel, (low, high) in zip(image, ranges, strict=True):
            np.nan_to_num(channel, copy=False, nan=low, neginf=low, posinf=high)
    return image


def evaluate(network: Built, tile: np.ndarray, how: Evaluation) -> np.ndarray:
    """Segment one tile.

    Args:
        network: What `build` returned.
        tile: ``(C, [Z], Y, X)`` if ``how`` has more than one intensity range, else ``([Z], Y, X)``.
        how: Every parameter.

    Returns:
        Labels of the tile's spatial shape.
    """
    image = prepared(tile, how.intensity)
    shape = image.shape[1:]
    image = _thick(image, how)
    labels = network.evaluate(image, how).reshape(image.shape[1:])
    labels = labels[tuple(slice(n) for n in shape)]
    # Cellpose's own filter assumes that there is background; a tile may have none
    return drop_small(labels, how.min_size)


def _thick(image: np.ndarray, how: Evaluation) -> np.ndarray:
    """Repeat the border of tiles of a pixel or two: Cellpose drops axes of length one."""
    least = 2 if how.diameter is None else max(2, int(how.diameter / 10) + 1)
    missing = [(0, 0), *((0, max(0, least - n)) for n in image.shape[1:])]
    return np.pad(image, missing, mode="edge") if any(b for _, b in missing) else image
