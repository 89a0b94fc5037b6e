"""Segmentation and merge of an image in this process, by the engine's own stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tiled import merge

from cytopave.engine.merge import Merge
from cytopave.engine.scratch.tiles import Scratch
from cytopave.engine.segment import segment_tiles
from cytopave.engine.tiling import Grid

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.segmenters import SegmenterBase


@dataclass(frozen=True)
class Run:
    """What `segment_tiles` needs of a plan."""

    digest: str
    image: Image
    channels: tuple[int, ...]
    grid: Grid
    segmenter: SegmenterBase
    scratch: Scratch
    merge: Merge = field(default_factory=Merge)
    in_flight: int = 4
    foreground: None = None
    sums: None = None
    measured: None = None
    measured_in_tiles: bool = False


def segmented(
    image: Image, segmenter: SegmenterBase, root: Path, *, tile: int, halo: int
) -> np.ndarray:
    """Merged labels of an image without channels, cut into tiles of ``tile`` pixels a side."""
    shape = image.spatial_shape
    grid = Grid(shape, (tile,) * len(shape), (halo,) * len(shape))
    run: Any = Run(f"{root}", image, (), grid, segmenter, Scratch(root))
    segment_tiles(run, tuple(range(len(grid))))
    labels, _ = merge(grid, run.scratch)
    return labels
