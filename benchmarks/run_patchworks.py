"""One run of patchworks' ``tile_process``, in its own environment, measured from outside.

``run_patchworks.py IMAGE OUTPUT TILE HALO RULE``. Uses its public interface alone.
"""

from __future__ import annotations

import sys

import cc3d
import numpy as np
from bench_images import THRESHOLD
from patchworks import tile_process


def segment(tile: np.ndarray) -> np.ndarray:
    """What cytopave's ``Threshold`` does, with the threshold known beforehand."""
    labels: np.ndarray = cc3d.connected_components(
        np.ascontiguousarray(tile > THRESHOLD), connectivity=8, binary_image=True
    )
    return labels.astype(np.int32)


def main(image: str, output: str, tile: int, halo: int, rule: str) -> None:
    tile_process(
        image,
        segment,
        tile_shape=(tile, tile),
        overlap=halo,
        max_workers=2,
        progress=False,
        write_to=output,
        stitch=rule,
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
