"""What Cellpose 3 and 4 have in common: how a tile is evaluated, and how Cellpose is called."""

from __future__ import annotations

import contextlib
import logging
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from cytopave.engine.errors import MissingExtraError, SegmenterError
from cytopave.engine.segmenters.cellpose_weights import tensor_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import numpy as np

type Ranges = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How a tile is evaluated: every number fixed, none left to the tile.

    Attributes:
        diameter: Object diameter in pixels, or None for the network's own scale.
        intensity: Per channel, what becomes 0 and what becomes 1.
        niter: Number of steps along the flows.
        volume: Whether the tile is a stack segmented in three dimensions.
    """

    diameter: float | None
    intensity: Ranges
    flow_threshold: float
    cellprob_threshold: float
    min_size: int
    niter: int
    batch_size: int
    volume: bool
    anisotropy: float
    flow3D_smooth: tuple[float, float, float]


class Built(Protocol):
    """A network on its device."""

    def evaluate(self, tile: np.ndarray, how: Evaluation) -> np.ndarray:
        """Labels ``([Z], Y, X)`` of a float32 tile ``(C, [Z], Y, X)`` that may be overwritten."""


def import_models() -> Any:
    """The module `cellpose.models`, without the remarks that importing it logs.

    Raises:
        MissingExtraError: Cellpose, or something that it needs, is not installed.
    """
    # A remark of torch on how Cellpose calls it, once a process; nothing that a user can change.
    warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
    with _quiet("cellpose.vit", "cellpose.models"):  # about DINOv3, which few have and need
        try:
            from cellpose import models
        except ImportError as error:
            raise MissingExtraError(
                f'Cellpose cannot be imported ({error}): pip install "cytopave[cellpose]"'
            ) from error
    return models


@contextlib.contextmanager
def _quiet(*names: str) -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in names]
    states = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, state in zip(loggers, states, strict=True):
            logger.disabled = state


def check_complete(names: Iterable[str], path: Path) -> None:
    """Refuse a file that lacks weights: Cellpose would leave random numbers in their place.

    Args:
        names: Tensors that the network has.
        path: The file.

    Raises:
        SegmenterError: At least one tensor is missing.
    """
    missing = sorted(set(names) - tensor_names(path))
    if missing:
        raise SegmenterError(
            f"{path} lacks {len(missing)} of the network's tensors ({missing[0]}, ...): it is "
            "incomplete; save or download it again"
        )


def normalize(ranges: Ranges) -> dict[str, Any]:
    """Every normalisation setting of `CellposeModel.eval`, none left to its defaults.

    `eval` keeps its defaults in one dictionary for the whole module and changes it when it is
    handed a bool; and without a range it takes percentiles of the tile.
    """
    return {
        "lowhigh": [list(r) for r in ranges],
        "percentile": None,
        "normalize": True,
        "norm3D": True,
        "sharpen_radius": 0,
        "smooth_radius": 0,
        "tile_norm_blocksize": 0,
        "tile_norm_smooth3D": 1,
        "invert": False,
    }
