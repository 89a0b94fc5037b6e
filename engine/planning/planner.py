"""How a run is planned: the tile from memory, the halo from the objects, the batch from time."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.boxes import Box
from cytopave.engine.errors import OutputError, PlanError
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.omezarr.labels import label_store, label_target
from cytopave.engine.planning.budget import UNKNOWN, host_budget
from cytopave.engine.planning.plan import Memory, Plan, batch_shape, tile_digest
from cytopave.engine.scratch.tenancy import DEFAULT_FOLDER
from cytopave.engine.scratch.tiles import Scratch
from cytopave.engine.tiling import Grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.merge import Merge
    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.planning.budget import Budget
    from cytopave.engine.segmenters import Segmenter
    from cytopave.engine.tiling import Tiling

_HALO_UNKNOWN = 64
_SIDES = (4096, 2048, 1024, 512, 256, 128, 64)
_GIB = 2**30


def make_plan(
    image: str,
    *,
    segmenter: Segmenter,
    tiling: Tiling,
    merge: Merge,
    budget: Budget,
    workers: int,
    batch_seconds: float,
    name: str,
    output: str | None = None,
    overwrite: bool = False,
    level: int = 0,
    axes: str | None = None,
    channels: Sequence[int | str] | None = None,
    scratch: Path | None = None,
) -> Plan:
    """Decide everything about a run, and refuse what cannot work, before any tile is read.

    Raises:
        UserError: The image, the request, the segmenter or the output is not usable.
    """
    source = open_image(image, level=level, axes=axes)
    chosen = source.channel_indices(channels)
    resolved = segmenter.resolve(source, channels=chosen)
    grids = plan_grids(source, tiling, resolved, budget, n_channels=max(1, len(chosen)))
    folder = scratch_root(label_store(source, output), scratch)
    content = source.fingerprint()
    digests = [
        tile_digest(content, level=level, channels=chosen, grid=grid, segmenter=resolved)
        for grid in grids
    ]
    grid, digest = _furthest(list(zip(grids, digests, strict=True)), folder)
    target = label_target(
        source, name=name, output=output, overwrite=overwrite, tile=grid.tile, digest=digest
    )
    need = tile_need(source, resolved, budget, grid, n_channels=max(1, len(chosen)))
    megapixels = math.prod(grid.tile) / 1e6
    tiles = batch_seconds * resolved.megapixels_per_second(on_gpu=budget.on_gpu) / megapixels
    return Plan(
        digest=digest,
        image=source,
        channels=chosen,
        grid=grid,
        segmenter=resolved,
        merge=merge,
        target=target,
        batch=batch_shape(grid, tiles=tiles, workers=workers),
        memory=Memory(need=need, budget=budget.size, source=budget.source),
        root=folder / digest[:16],
    )


def draft_plan(
    image: str, *, workers: int | None, batch_seconds: float = 20.0, **request: Any
) -> Plan:
    """The plan as far as it can be made before there are workers; leaves nothing behind.

    Its use is to refuse at once what cannot work. What it found out about the whole image is in
    its segmenter, and need not be found out again.

    Args:
        image: As for `make_plan`, like the ``request``.
        workers: How many workers there will be at least that share this host's memory; None where
            they run elsewhere.
        batch_seconds: Work of one task.
        request: The other arguments of `make_plan`, except for the budget.

    Raises:
        UserError: The image, the request, the segmenter or the output is not usable.
    """
    budget = UNKNOWN if workers is None else host_budget(workers)
    return make_plan(
        image, budget=budget, workers=workers or 1, batch_seconds=batch_seconds, **request
    )


def plan_grids(
    image: Image, tiling: Tiling, segmenter: Segmenter, budget: Budget, *, n_channels: int
) -> list[Grid]:
    """The grid that was asked for, or those that memory allows, that of the largest tile first.

    Raises:
        PlanError: No grid satisfies the request.
    """
    halo = _halo(image, tiling, segmenter)
    if tiling.tile != "auto":
        grid = Grid(image.spatial_shape, _tile(image, tiling.tile), halo, image.n_times)
        need = tile_need(image, segmenter, budget, grid, n_channels=n_channels)
        if need > budget.size:
            raise PlanError(
                f"a tile of {grid.tile} pixels with a halo of {halo} needs about "
                f"{need / _GIB:.1f} GiB, and there are {budget.size / _GIB:.1f} GiB for it "
                f"({budget.source}): take a smaller tile, or 'auto'"
            )
        return [grid]
    fitting = [
        grid
        for grid in _candidates(image, halo)
        if tile_need(image, segmenter, budget, grid, n_channels=n_channels) <= budget.size
    ]
    if fitting:
        return fitting
    raise PlanError(
        f"not even a tile of {_SIDES[-1]} pixels with a halo of {halo} fits into "
        f"{budget.size / _GIB:.2f} GiB ({budget.source}): free memory or take a smaller halo"
    )


def _furthest(choices: list[tuple[Grid, str]], folder: Path) -> tuple[Grid, str]:
    """The first choice, or that of which an earlier attempt left the most finished tiles.

    Memory that is free differs from attempt to attempt: tiles that are there are worth more than
    larger ones.
    """
    if len(choices) == 1 or not folder.is_dir():
        return choices[0]
    return max(choices, key=lambda choice: len(Scratch(folder / choice[1][:16]).finished()))


def tile_need(
    image: Image, segmenter: Segmenter, budget: Budget, grid: Grid, *, n_channels: int
) -> int:
    """Bytes that the largest tile of a grid needs: on the GPU, or of the worker's own memory."""
    window = tuple(
        min(n, t + 2 * h) for n, t, h in zip(grid.shape, grid.tile, grid.halo, strict=True)
    )
    if budget.on_gpu and segmenter.wants_gpu:
        return segmenter.device_bytes(window, np.dtype(image.dtype).itemsize, n_channels)
    start = tuple((n - w) // 2 for n, w in zip(grid.shape, window, strict=True))
    middle = Box(start, tuple(a + w for a, w in zip(start, window, strict=True)))
    region = segmenter.region(middle, grid.shape)
    # Pixels as read and as float32 for the function, its labels (int64 at worst), the dense copy.
    itemsize = np.dtype(image.dtype).itemsize
    return region.size * n_channels * (itemsize + 4) + middle.size * (8 + 4)


def scratch_root(store: str, scratch: Path | None) -> Path:
    """Where scratch folders lie: as asked, else beside the local store that gets the labels.

    Raises:
        OutputError: The store is remote and no scratch folder was named.
    """
    if scratch is not None:
        return scratch.expanduser().absolute()
    if "://" in store:
        raise OutputError(
            f"the labels go to {store}, which is not a local folder: name a scratch folder that "
            "all workers share (--scratch or CYTOPAVE_SCRATCH)"
        )
    return Path(store).parent / DEFAULT_FOLDER


def _halo(image: Image, tiling: Tiling, segmenter: Segmenter) -> tuple[int, ...]:
    shape = image.spatial_shape
    if isinstance(tiling.halo, tuple):
        return _tile(image, tiling.halo, fill=0)
    if isinstance(tiling.halo, int):
        return tuple(tiling.halo if n > 1 else 0 for n in shape)
    diameter = segmenter.diameter_px
    halo = 16 * math.ceil(1.5 * diameter / 16) if diameter else _HALO_UNKNOWN
    if tiling.tile != "auto":
        halo = min(halo, *_tile(image, tiling.tile)[-2:])
    return (0,) * (len(shape) - 2) + (halo, halo)


def _tile(image: Image, given: tuple[int, ...], fill: int | None = None) -> tuple[int, ...]:
    shape = image.spatial_shape
    if len(given) == 2 and len(shape) == 3:
        given = (shape[0] if fill is None else fill, *given)
    if len(given) != len(shape):
        raise PlanError(
            f"{len(given)} lengths {given} were given for the {len(shape)} spatial axes "
            f"{image.spatial_axes.upper()} of the image: give one an axis"
        )
    return given if fill is not None else tuple(map(min, given, shape))


def _candidates(image: Image, halo: tuple[int, ...]) -> list[Grid]:
    """Grids from large tiles to small ones, in multiples of the image's chunks where they fit."""
    shape = image.spatial_shape
    chunks = image.canonical_chunks[-len(shape) :]
    grids = []
    for side in itertools.dropwhile(lambda s: s > _largest(shape), _SIDES):
        wanted = (shape[0], side, side)[-len(shape) :]
        tile = tuple(
            min(n, max(c, w // c * c) if c <= w else w)
            for n, w, c in zip(shape, wanted, chunks, strict=True)
        )
        if all(h <= t or t == n for h, t, n in zip(halo, tile, shape, strict=True)):
            grids.append(Grid(shape, tile, halo, image.n_times))
    return grids


def _largest(shape: tuple[int, ...]) -> int:
    """Side of the largest tile worth having: more would only make failures and waits longer."""
    planes = shape[0] if len(shape) == 3 else 1
    return 2048 if planes == 1 else max(256, 2 ** int(math.log2(2048 / math.sqrt(planes))))
