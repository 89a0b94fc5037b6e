"""How a run is planned: the tile from memory, the halo from the objects, the batch from time."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cytopave.engine.errors import OutputError, PlanError
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.omezarr.labels import label_store, label_target
from cytopave.engine.planning.budget import UNKNOWN, host_budget
from cytopave.engine.planning.needs import tile_need, tiles_in_hand
from cytopave.engine.planning.plan import Memory, Plan, batch_shape, tile_digest
from cytopave.engine.scratch.tenancy import DEFAULT_FOLDER
from cytopave.engine.scratch.tiles import Scratch
from cytopave.engine.tables.target import table_of_run
from cytopave.engine.tiling import Grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.merge import Merge
    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.planning.budget import Budget
    from cytopave.engine.planning.foreground import Mask
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
    mask: Mask | None = None,
    measure: bool = False,
) -> Plan:
    """Decide everything about a run, and refuse what cannot work, before any tile is read.

    Raises:
        UserError: The image, the request, the segmenter or the output is not usable.
    """
    source = open_image(image, level=level, axes=axes)
    chosen = source.channel_indices(channels)
    foreground = mask.resolve(source, channels=chosen) if mask else None
    placed = segmenter if budget.on_gpu is None else segmenter.placed_on(gpu=budget.on_gpu)
    resolved = placed.resolve(source, channels=chosen)
    grids = plan_grids(source, tiling, resolved, budget, n_channels=max(1, len(chosen)))
    folder = scratch_root(label_store(source, output), scratch)
    content = source.fingerprint()
    facts: dict[str, Any] = {
        "level": level,
        "channels": chosen,
        "segmenter": resolved,
        "foreground": foreground.digest() if foreground else None,
    }
    grid, digest = _furthest([(g, tile_digest(content, grid=g, **facts)) for g in grids], folder)
    target = label_target(
        source, name=name, output=output, overwrite=overwrite, tile=grid.tile, digest=digest
    )
    if measure:
        table_of_run(target, merge).check()
    need = tile_need(source, resolved, budget, grid, n_channels=max(1, len(chosen)))
    in_flight, in_tiles = tiles_in_hand(
        source, resolved, grid, chosen, room=host_budget(workers).size, measure=measure
    )
    return Plan(
        digest=digest,
        fingerprint=content,
        image=source,
        channels=chosen,
        grid=grid,
        segmenter=resolved,
        merge=merge,
        target=target,
        batch=_batch(
            grid, resolved, seconds=batch_seconds, workers=workers, gpu=bool(budget.on_gpu)
        ),
        in_flight=in_flight,
        memory=Memory(need=need, budget=budget.size, source=budget.source),
        root=folder / digest[:16],
        foreground=foreground,
        measured=source.channel_indices() if measure else None,
        measured_in_tiles=in_tiles,
    )


def _batch(
    grid: Grid, segmenter: Segmenter, *, seconds: float, workers: int, gpu: bool
) -> tuple[int, ...]:
    """Tiles per axis of a task that takes so many seconds."""
    megapixels = math.prod(grid.tile) / 1e6
    tiles = seconds * segmenter.megapixels_per_second(on_gpu=gpu) / megapixels
    # While a GPU waits for its next task it does nothing: rather no more tasks than that.
    return batch_shape(grid, tiles=tiles, workers=workers, least=tiles / 4 if gpu else 1)


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
    budget = UNKNOWN if workers is None else replace(host_budget(workers), on_gpu=None)
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
        tile = _tile(image, tiling.tile, segmenter)
        grid = Grid(image.spatial_shape, tile, halo, image.n_times)
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
        for grid in _candidates(image, halo, segmenter)
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
    flat = (0,) * (len(shape) - 2)
    if isinstance(tiling.halo, tuple):
        halo = _lengths(image, tiling.halo, fill=0)
        if segmenter.planewise and any(halo[:-2]):
            raise PlanError(
                f"planes are segmented one by one, and a halo of {halo[0]} planes was asked for: "
                "take a halo of 0 along Z, or give two numbers, for Y and X"
            )
        return halo
    if isinstance(tiling.halo, int):
        halo = tuple(tiling.halo if n > 1 else 0 for n in shape)
        return (*flat, *halo[-2:]) if segmenter.planewise else halo
    diameter = segmenter.diameter_px
    side = 16 * math.ceil(1.5 * diameter / 16) if diameter else _HALO_UNKNOWN
    if tiling.tile != "auto":
        side = min(side, *_tile(image, tiling.tile, segmenter)[-2:])
    return (*flat, side, side)


def _tile(image: Image, given: tuple[int, ...], segmenter: Segmenter) -> tuple[int, ...]:
    shape = image.spatial_shape
    planes = _planes(shape, segmenter)
    tile = tuple(map(min, _lengths(image, given, fill=planes), shape))
    if segmenter.planewise and len(shape) == 3 and tile[0] != planes:
        raise PlanError(
            f"planes are segmented one by one, and a tile of {tile[0]} planes was asked for: take "
            "one plane, or give two numbers, for Y and X"
        )
    return tile


def _planes(shape: tuple[int, ...], segmenter: Segmenter) -> int:
    """Planes of a tile that is as thick as possible."""
    return 1 if segmenter.planewise or len(shape) < 3 else shape[0]


def _lengths(image: Image, given: tuple[int, ...], *, fill: int) -> tuple[int, ...]:
    """One length an axis; ``fill`` is that along Z where it was left out."""
    shape = image.spatial_shape
    if len(given) == 2 and len(shape) == 3:
        given = (fill, *given)
    if len(given) != len(shape):
        raise PlanError(
            f"{len(given)} lengths {given} were given for the {len(shape)} spatial axes "
            f"{image.spatial_axes.upper()} of the image: give one an axis"
        )
    return given


def _candidates(image: Image, halo: tuple[int, ...], segmenter: Segmenter) -> list[Grid]:
    """Grids from large tiles to small ones, in multiples of the image's chunks where they fit."""
    shape = image.spatial_shape
    planes = _planes(shape, segmenter)
    chunks = image.canonical_chunks[-len(shape) :]
    grids = []
    largest = max(_largest(planes), segmenter.useful_side)
    for side in itertools.dropwhile(lambda s: s > largest, _SIDES):
        wanted = (planes, side, side)[-len(shape) :]
        tile = tuple(
            min(n, max(c, w // c * c) if c <= w else w)
            for n, w, c in zip(shape, wanted, chunks, strict=True)
        )
        if all(h <= t or t == n for h, t, n in zip(halo, tile, shape, strict=True)):
            grids.append(Grid(shape, tile, halo, image.n_times))
    return grids


def _largest(planes: int) -> int:
    """Side of the largest tile worth having: more would only make failures and waits longer."""
    return 2048 if planes == 1 else 2 ** int(math.log2(2048 / math.sqrt(planes)))
