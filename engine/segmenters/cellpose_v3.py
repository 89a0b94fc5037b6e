"""Cellpose 3.1: what differs from Cellpose 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.segmenters.cellpose_common import (
    Evaluation,
    check_complete,
    import_models,
    normalize,
)

if TYPE_CHECKING:
    from pathlib import Path

    from cytopave.engine.segmenters.cellpose_weights import Network

CHANNELS = 2
"""Channels that the network takes: what to segment, and nuclei or nothing."""


@dataclass(frozen=True, slots=True)
class CellposeV3:
    """A `CellposeModel` of Cellpose 3 on its device."""

    model: Any

    @classmethod
    def build(cls, path: Path, network: Network, device: Any) -> CellposeV3:
        """Build the network and load the file.

        Raises:
            SegmenterError: The file lacks tensors.
        """
        model = import_models().CellposeModel(pretrained_model=str(path), device=device)
        # Loading on a CPU builds the network anew and forgets the diameters that it was given.
        model.diam_mean, model.diam_labels = network.diam_mean, network.diam_labels
        names = model.net.state_dict()
        check_complete(
            {n for n in names if not n.startswith("diam_") and "num_batches" not in n}, path
        )
        model.net.eval()
        return cls(model)

    def evaluate(self, tile: np.ndarray, how: Evaluation) -> np.ndarray:
        """Labels of a float32 tile ``(C, [Z], Y, X)``."""
        image, ranges = _two_channels(tile, how)
        labels, _, _ = self.model.eval(
            image,
            channels=None,
            channel_axis=image.ndim - 1,
            z_axis=0 if how.volume else None,
            normalize=normalize(ranges),
            diameter=how.diameter,
            batch_size=how.batch_size,
            flow_threshold=how.flow_threshold,
            cellprob_threshold=how.cellprob_threshold,
            # 3.1.1.3 removes the wrong objects where a tile has no background; the caller filters
            min_size=-1,
            max_size_fraction=1.0,  # of the tile: anything else depends on the tile's size
            niter=how.niter,
            do_3D=how.volume,
            anisotropy=how.anisotropy,
            flow3D_smooth=how.flow3D_smooth[0],  # the same for all axes: resolve checks it
        )
        return np.asarray(labels)


def _two_channels(
    tile: np.ndarray, how: Evaluation
) -> tuple[np.ndarray, tuple[tuple[float, float], ...]]:
    """The tile with channels last and as many as the network has, those that miss being zero."""
    missing = CHANNELS - len(tile)
    padded = np.pad(tile, [(0, missing), *[(0, 0)] * (tile.ndim - 1)])
    return np.moveaxis(padded, 0, -1), (*how.intensity, *[(0.0, 1.0)] * missing)
