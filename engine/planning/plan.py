"""A run, decided: every value that its result depends on, fixed before the first tile."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from cytopave.engine.merge import Merge
from cytopave.engine.omezarr import stores
from cytopave.engine.omezarr.image import Image
from cytopave.engine.omezarr.labels import LabelTarget
from cytopave.engine.planning.foreground import Foreground
from cytopave.engine.scratch.saved import Saved
from cytopave.engine.scratch.tiles import Scratch
from cytopave.engine.segmenters import Segmenter
from cytopave.engine.tables.target import table_of_run
from cytopave.engine.tables.tile_sums import TileSums
from cytopave.engine.tiling import Grid

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Raise it whenever tiles computed by an earlier version must not be used again.
CODE_VERSION = 1


class Memory(BaseModel):
    """What a tile needs and what there is for it, in bytes.

    Attributes:
        need: Peak need of one tile by the segmenter's own model.
        budget: What one worker may use.
        source: Where the budget comes from, one sentence.
    """

    model_config = ConfigDict(frozen=True)

    need: int
    budget: int
    source: str


class Plan(Saved):
    """A run with nothing left to decide; workers read it from the run's scratch folder.

    Attributes:
        digest: Names the tiles' content: image, channels, grid, segmenter and code version; once
            tiles are left out, which ones as well.
        fingerprint: The image's `Image.fingerprint` when the run was planned.
        image: The image at the level that is segmented.
        channels: Channels that the segmenter gets; empty where the image has no channel axis.
        grid: The tiles.
        segmenter: Resolved: global thresholds and intensity ranges are fixed.
        merge: When two tiles' labels are one object.
        target: Where the labels go.
        batch: Tiles per axis in one task.
        in_flight: Tiles that a worker may have in hand at a time: read ahead, computed, finished.
        memory: Need and budget of one tile.
        foreground: What decides which tiles are segmented; None: all are.
        left_out: Tiles that failed and count as empty.
        measured: Channels of which a table is wanted; None where none is.
        measured_in_tiles: Whether tiles are measured while their pixels are in memory; else the
            image is read again.
    """

    digest: str
    fingerprint: str
    image: Image
    channels: tuple[int, ...]
    grid: Grid
    segmenter: Segmenter
    merge: Merge
    target: LabelTarget
    batch: tuple[int, ...]
    in_flight: int
    memory: Memory
    foreground: Foreground | None = None
    left_out: tuple[int, ...] = ()
    measured: tuple[int, ...] | None = None
    measured_in_tiles: bool = False

    @property
    def scratch(self) -> Scratch:
        """The tile files."""
        return Scratch(self.root, frozenset(self.left_out))

    @property
    def settled(self) -> dict[str, Any]:
        """Arguments of `make_plan` with what was found out about the whole image in them."""
        mask = self.foreground.asked if self.foreground else None
        return {"segmenter": self.segmenter, "mask": mask}

    @property
    def batches(self) -> Sequence[tuple[int, ...]]:
        """Tile indices of each segmentation task."""
        return self.grid.blocks(self.batch)

    def batch_name(self, batch: int) -> str:
        """What messages call a batch, whose tiles form a block and so are no range of numbers."""
        tiles = [str(i) for i in self.batches[batch]]
        shown = tiles if len(tiles) <= 6 else [*tiles[:3], "...", tiles[-1]]
        return f"batch {batch} (tiles {', '.join(shown)})"

    @property
    def merge_folder(self) -> Path:
        """Links and resolution of this merge rule: another rule reuses the tiles."""
        without = f"-{self.digest[:16]}" if self.left_out else ""
        return self.root / f"merge-{self.merge.rule}-{self.merge.iou:g}{without}"

    @property
    def table_folder(self) -> Path:
        """Sums of the objects that this merge rule makes."""
        return self.root / f"table-{table_of_run(self.target, self.merge).digest[:16]}"

    @property
    def sums(self) -> TileSums | None:
        """What measures the objects; None where no table is wanted."""
        if self.measured is None:
            return None
        return TileSums(self.grid, self.image, self.measured, self.table_folder)

    def without(self, tiles: Iterable[int]) -> Plan:
        """The plan of a label image in which some tiles are missing; writes what stands for them.

        Its digest is another one: the complete label image is never taken for made.
        """
        left_out = tuple(sorted(tiles))
        digest = hashlib.sha256(f"{self.digest} without {left_out}".encode()).hexdigest()
        target = self.target.model_copy(update={"digest": digest})
        for index in left_out:
            self.scratch.leave_out(self.grid, self.grid[index])
        changes = {"digest": digest, "target": target, "left_out": left_out}
        return self.model_copy(update=changes)

    def loaded(self) -> None:
        """Look up the names of stores now: threads that read ahead could not."""
        for store in (self.image.folder, self.target.store):
            stores.located(store.url, store.options)


def tile_digest(
    content: str,
    *,
    level: int,
    channels: tuple[int, ...],
    grid: Grid,
    segmenter: Segmenter,
    foreground: str | None = None,
) -> str:
    """Digest of all that a tile's labels depend on: 64 hexadecimal digits.

    Args:
        content: The image's `Image.fingerprint`.
        level: Its level.
        channels: Those that the segmenter gets.
        grid: The tiles.
        segmenter: Resolved.
        foreground: Digest of what decides which tiles are segmented, if anything does.
    """
    facts = {
        "code": CODE_VERSION,
        "image": content,
        "level": level,
        "channels": channels,
        "grid": [grid.shape, grid.tile, grid.halo, grid.times],
        "segmenter": segmenter.digest(),
        **({"foreground": foreground} if foreground else {}),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def batch_shape(grid: Grid, *, tiles: float, workers: int, least: float = 1.0) -> tuple[int, ...]:
    """Tiles per axis of a batch: compact, about ``tiles`` in all, three batches a worker or more.

    Neighbouring tiles read the same chunks; a compact batch reads most of them once.

    Args:
        grid: The tiles.
        tiles: How many make a task worth its overhead.
        workers: They share the batches; with three each, none waits long for the last one.
        least: Rather than batches of fewer tiles than that, one batch a worker.
    """
    share = len(grid) / workers
    wanted = min(tiles, max(share / 3, min(least, share)))
    shape = [1] * len(grid.counts)
    while True:
        for axis in sorted(range(len(shape)), key=lambda a: shape[a]):
            grown = [n + (a == axis) for a, n in enumerate(shape)]
            fits = grown[axis] <= grid.counts[axis] and math.prod(grown) <= max(1.0, wanted)
            if fits and all(
                grown[axis] <= 2 * n or n == grid.counts[a] for a, n in enumerate(shape)
            ):
                shape = grown
                break
        else:
            return tuple(shape)
