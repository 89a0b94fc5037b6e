"""The labels as a step finds them: what the step before painted, and what was selected since."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.boxes import Box
from cytopave.engine.errors import LabelError
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.reading import TileReader
from cytopave.engine.refine.refinement import unsigned
from cytopave.engine.refine.selection import Selection
from cytopave.engine.tiling import Tile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.refine.refinement import Refinement


@dataclass(frozen=True)
class Source:
    """Labels to read, block by block.

    Attributes:
        refinement: The run.
        image: The array that holds pixels.
        selections: What was decided about the ids in it, in order.
    """

    refinement: Refinement
    image: Image
    selections: tuple[Selection, ...]

    @classmethod
    def of(cls, refinement: Refinement, step: int) -> Source:
        """What a step reads."""
        image = refinement.labels
        selections: list[Selection] = []
        for number, before in enumerate(refinement.steps[:step]):
            folder = refinement.folder(number)
            if before.paints:
                image = open_image(str(folder / "labels"), axes=refinement.target.axes)
                selections = []
            else:
                selections.append(Selection.load(folder))
        return cls(refinement, image, tuple(selections))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the ids: uint32 or uint64."""
        new = [s.new.dtype for s in self.selections if s.new is not None]
        return np.dtype(new[-1]) if new else unsigned(self.image.dtype)

    def tiles(self, blocks: Sequence[int], *, halo: tuple[int, ...] | None = None) -> list[Tile]:
        """Blocks, by their indices, and what is to be read of each."""
        whole = Box.of(self.refinement.labels.spatial_shape)
        found = [(i, self.refinement.blocks[i]) for i in blocks]
        return [
            Tile(i, b.time, (), b.box, b.box.grow(halo).intersect(whole) if halo else b.box)
            for i, b in found
        ]

    def reader(self, tiles: Sequence[Tile]) -> TileReader:
        """Reads these tiles, each chunk once."""
        return TileReader(self.image, tiles, channels=())

    def read(self, reader: TileReader, tile: Tile) -> np.ndarray:
        """The ids in a tile's window, `dtype`.

        Raises:
            CorruptError: A chunk is truncated or damaged.
            LabelError: An id is negative.
        """
        labels = reader.read(tile)
        if labels.dtype.kind == "i" and labels.min(initial=0) < 0:
            raise LabelError(
                f"the labels {self.refinement.place} hold the id {labels.min()}: ids are 0 for the "
                "background and positive for objects"
            )
        labels = labels.astype(unsigned(labels.dtype), copy=False)
        for selection in self.selections:
            labels = selection.apply(labels, tile.time)
        return labels

    def read_all(self, tiles: Sequence[Tile]) -> Iterator[tuple[Tile, np.ndarray]]:
        """Each tile and its ids."""
        reader = self.reader(tiles)
        for tile in tiles:
            yield tile, self.read(reader, tile)
