"""What a run of a million tiles and a hundred million objects costs outside its tiles.

    python benchmarks/scale.py [--tiles 1000000] [--objects 100000000] [--links 10000000]

*Plan*: everything that enumerates tiles, batches, groups and blocks of writing is gone through as
the flow and its workers do; no pixel exists. *Resolve*: ``resolve`` gets made-up tables and links
of that size, in the order in which a run's files give them. Each part runs in a process of its own;
seconds are CPU seconds, memory is the process' peak.
"""

from __future__ import annotations

import argparse
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tables import machine, print_table

from cytopave.engine.merge import LINK, Merge, resolve
from cytopave.engine.omezarr.image import Image, Level
from cytopave.engine.omezarr.labels import LabelTarget
from cytopave.engine.omezarr.pyramid import lay_out, plan_blocks
from cytopave.engine.planning.plan import Memory, Plan, batch_shape
from cytopave.engine.scratch.tiles import shared_zone
from cytopave.engine.scratch.views import VIEW
from cytopave.engine.segmenters import Threshold
from cytopave.engine.tiling import Grid
from cytopave.tasks.merge import scan_groups, write_groups

TILE, HALO = 2048, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiles", type=int, default=10**6)
    parser.add_argument("--objects", type=int, default=10**8)
    parser.add_argument("--links", type=int, default=10**7)
    parser.add_argument("--part", choices=("plan", "resolve"))
    args = parser.parse_args()
    if args.part == "plan":
        planning(args.tiles)
    elif args.part == "resolve":
        resolving(args.tiles, args.objects, args.links)
    else:
        print(machine(), flush=True)
        for part in ("plan", "resolve"):
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--part", part], check=True)


def timed(rows: list[dict[str, str]], name: str, function: Callable[[], Any]) -> Any:
    start = time.process_time()
    result = function()
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    rows.append({"": name, "CPU s": f"{seconds:.1f}", "peak MB so far": f"{peak:.0f}"})
    return result


def planning(tiles: int) -> None:
    """Enumerate everything that a run of that many tiles enumerates."""
    rows: list[dict[str, str]] = []
    plan = timed(rows, "plan", lambda: made_up_plan(round(math.sqrt(tiles))))
    grid = plan.grid
    timed(rows, f"{len(grid)} tiles", lambda: sum(1 for _ in grid))
    timed(
        rows,
        "their shared zones",
        lambda: sum(1 for t in grid for s, _ in grid.steps(t) if shared_zone(grid, t, s)),
    )
    batches = timed(rows, "batches", lambda: len(plan.batches))
    scans = len(scan_groups(plan, tasks=16))
    scanned = timed(
        rows,
        f"tiles of {scans} scan tasks",
        lambda: sum(len(scan_groups(plan, tasks=16)[i]) for i in range(scans)),
    )
    writes = len(write_groups(plan, tasks=16))
    written = timed(
        rows,
        f"blocks of {writes} write tasks",
        lambda: sum(b.box.size for i in range(writes) for b in write_groups(plan, tasks=16)[i]),
    )
    assert scanned == len(grid)
    assert written == math.prod(grid.shape)
    print_table(f"Plan: {grid.shape} pixels, {len(grid)} tiles in {batches} batches", rows)


def made_up_plan(side: int) -> Plan:
    """A plan of ``side * side`` tiles of an image that does not exist."""
    shape = (side * TILE, side * TILE)
    level = Level("0", shape, (1.0, 1.0), (0.0, 0.0))
    image = Image(
        url="/nowhere.zarr",
        level=0,
        axes="yx",
        shape=shape,
        dtype="uint16",
        chunks=(512, 512),
        shards=(TILE, TILE),
        scale=(1.0, 1.0),
        translation=(0.0, 0.0),
        units=(None, None),
        levels=(level,),
        channels=(),
        version="0.5",
        zarr_format=3,
    )
    grid = Grid(shape, (TILE, TILE), (HALO, HALO))
    blocks = plan_blocks(shape, grid.tile)
    levels, direct = lay_out(image, "yx", blocks)
    target = LabelTarget(
        url=image.url,
        storage_options={},
        name="cells",
        digest="0" * 64,
        overwrite=False,
        version="0.5",
        zarr_format=3,
        axes="yx",
        units=(None, None),
        levels=levels,
        direct=direct,
        plan=blocks,
        source=None,
    )
    return Plan(
        fingerprint="",
        digest="0" * 64,
        image=image,
        channels=(),
        grid=grid,
        segmenter=Threshold(threshold=1.0),
        merge=Merge(),
        target=target,
        batch=batch_shape(grid, tiles=64, workers=16),
        in_flight=1,
        memory=Memory(need=0, budget=0, source=""),
        root=Path("/nowhere"),
    )


def resolving(tiles: int, objects: int, links: int) -> None:
    """Resolve: each tile shares some of its objects with the next one of its row."""
    rows: list[dict[str, str]] = []
    shared, per_tile = links // tiles, (objects + links) // tiles
    side = round(math.sqrt(tiles))
    grid = Grid((side * TILE, side * TILE), (TILE, TILE), (HALO, HALO))
    counts = np.full(len(grid), per_tile, np.int64)
    joined = timed(rows, "links made up", lambda: made_up_links(grid, per_tile, shared))
    result = timed(
        rows,
        "resolve",
        lambda: resolve(counts, made_up_tables(grid, per_tile, shared), joined, Merge()),
    )
    views = len(result.final)
    assert result.n_objects == views - len(joined)
    assert result.n_joined == len(joined)
    assert int(result.final.max()) == result.n_objects
    title = f"Resolve: {views} views of {len(grid)} tiles, {len(joined)} links"
    print_table(f"{title}, {result.n_objects} objects", rows)


def made_up_links(grid: Grid, per_tile: int, shared: int) -> np.ndarray:
    """The last views of a tile are the first of the tile on its right."""
    a = np.arange(len(grid)).reshape(grid.counts)[:, :-1].ravel()
    links = np.zeros(len(a) * shared, LINK)
    links["tile_a"], links["tile_b"] = np.repeat(a, shared), np.repeat(a + 1, shared)
    links["view_a"] = np.tile(np.arange(per_tile - shared, per_tile) + 1, len(a))
    links["view_b"] = np.tile(np.arange(shared) + 1, len(a))
    links["overlap"], links["agreement"] = 300, 1
    return links


def made_up_tables(grid: Grid, per_tile: int, shared: int) -> Iterator[tuple[int, np.ndarray]]:
    """Objects of 300 pixels, in raster order in each tile; those shared lie in two cores."""
    table = np.zeros(per_tile, VIEW)
    table["area"] = table["core_area"] = 300
    table["core_area"][:shared] = 120
    table["core_area"][per_tile - shared :] = 180
    y = np.linspace(0, TILE - 20, per_tile).astype(np.int64)
    x = np.random.default_rng(0).integers(0, TILE - 20, per_tile)
    x[per_tile - shared :] = TILE - 10
    y[:shared], x[:shared] = y[per_tile - shared :], -10
    place = y * grid.shape[1] + x
    for index in range(len(grid)):
        row, column = divmod(index, grid.counts[1])
        table["first"] = place + (row * grid.shape[1] + column) * TILE
        table["first_core"] = table["first"]
        yield index, table


if __name__ == "__main__":
    main()
