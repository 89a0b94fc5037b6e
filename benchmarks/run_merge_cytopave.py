"""Stage tiles, or merge staged ones, in this process: the two halves of merge_only.py for us."""

from __future__ import annotations

import os
import sys
from itertools import chain
from pathlib import Path

from cytopave.engine.image import open_image
from cytopave.engine.labels import label_target
from cytopave.engine.lazy import grouped
from cytopave.engine.merge import Merge, stages
from cytopave.engine.plan import Memory, Plan, batch_shape
from cytopave.engine.segment import segment_tiles
from cytopave.engine.segmenters import Threshold
from cytopave.engine.tiling import Grid

GROUPS = 4  # as many tasks as two workers get


def stage(url: str, folder: str, tile: str, halo: str) -> None:
    image = open_image(url)
    grid = Grid(image.spatial_shape, (int(tile), int(tile)), (int(halo), int(halo)))
    digest = "0" * 64
    target = label_target(
        image, name="cells", output=f"{folder}/unused.zarr", tile=grid.tile, digest=digest
    )
    plan = Plan(
        digest=digest,
        image=image,
        channels=(),
        grid=grid,
        segmenter=Threshold().resolve(image, channels=()),
        merge=Merge(),
        target=target,
        batch=batch_shape(grid, tiles=64, workers=2),
        memory=Memory(need=0, budget=0, source=""),
        root=Path(folder),
    )
    for batch in plan.batches:
        segment_tiles(plan, batch)
    (plan.root / "plan.json").write_text(plan.model_dump_json())


def merge(folder: str, output: str) -> None:
    plan = Plan.model_validate_json(Path(folder, "plan.json").read_bytes())
    target = label_target(
        plan.image, name="cells", output=output, tile=plan.grid.tile, digest=plan.digest
    )
    plan = plan.model_copy(update={"target": target})
    scanned = [tuple(chain.from_iterable(batches)) for batches in grouped(plan.batches, GROUPS)]
    for tiles in scanned:
        stages.scan_tiles(plan, tiles)
    plan.target.create(stages.resolve_run(plan, scanned).final.dtype)
    written = grouped(plan.target.blocks(), GROUPS)
    for blocks in written:
        stages.write_blocks(plan, blocks)
    stages.count_seams(plan, written)
    plan.target.finish()
    plan.target.publish({})


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    (stage if sys.argv[1] == "stage" else merge)(*sys.argv[2:])
