"""The exceptions that cytopave raises: one root, messages that say what to change.

Every exception takes one string, so that it survives pickling between processes; what else it
carries is an attribute, which pickling keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class CytopaveError(Exception):
    """Root of all exceptions that cytopave raises on purpose."""


class UserError(CytopaveError):
    """Something that was asked for cannot be done; the message says what to change."""


class ImageError(UserError):
    """The image cannot be read, or does not hold what was asked for."""


class StoreError(UserError):
    """A remote store does not answer, or refuses."""


class PlanError(UserError):
    """No tile plan satisfies the request (halo, tile size, memory)."""


class SegmenterError(UserError):
    """A segmenter, its model or its function cannot be used."""


class OutputError(UserError):
    """The output exists, cannot be written, or is not what a run would have written."""


class StaleTableError(UserError):
    """A table does not describe the labels that are there now."""


class ClusterError(UserError):
    """The cluster asked for cannot serve a run."""


class MissingExtraError(UserError):
    """An optional package is needed and not installed."""


class LabelError(UserError):
    """A segmentation function returned something that is not a label image."""


class _OfTiles(CytopaveError):
    """What ended some tiles.

    Attributes:
        tiles: The cause by the index of the tile, as far as causes can be told apart.
    """

    def __init__(self, message: str, tiles: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.tiles = dict(tiles or {})


class TileError(_OfTiles):
    """A tile could not be segmented; the message names the tile and the cause."""


class SweepError(CytopaveError):
    """Some images of many failed; the message names them and the causes."""


class ConvertError(CytopaveError):
    """Some files of many could not be converted; the message names them and the causes."""


class CorruptError(CytopaveError):
    """A stored file is truncated or damaged."""


class OutOfMemoryError(_OfTiles):
    """The GPU's memory did not suffice; a later attempt may succeed."""


class AtlasError(UserError):
    """A matrix of cells by genes cannot be read, or does not hold what was asked for."""
