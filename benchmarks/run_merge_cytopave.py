"""Stage tiles, or merge staged ones, in this process: the two halves of merge_only.py for us."""

from __future__ import annotations

import os
import sys
from itertools import chain
from pathlib import Path

from cytopave.engine.lazy import grouped
from cytopave.engine.merge import Merge, stages
from cytopave.engine.omezarr.labels import label_target
from cytopave.engine.planning.budget import Budget
from cytopave.engine.planning.plan import Plan
from cytopave.engine.planning.planner import make_plan
from cytopave.engine.segment import segment_tiles
from cytopave.engine.segmenters import Threshold
from cytopave.engine.tiling import Tiling

GROUPS = 4  # as many tasks as two workers get


def stage(image: str, folder: str, tile: str, halo: str) -> None:
    plan = make_plan(
        image,
        segmenter=Threshold(),
        tiling=Tiling(tile=(int(tile), int(tile)), halo=int(halo)),
        merge=Merge(),
        budget=Budget(2**31, "assumed", on_gpu=False),
        workers=2,
        batch_seconds=20,
        name="cells",
        output=f"{folder}/unused.zarr",
        scratch=Path(folder),
    )
    for batch in plan.batches:
        segment_tiles(plan, batch)
    Path(folder, "plan.json").write_text(plan.model_dump_json())


def merge(rival: str, folder: str, output: str) -> None:
    plan = Plan.model_validate_json(Path(folder, "plan.json").read_bytes())
    target = label_target(
        plan.image, name="cells", output=output, tile=plan.grid.tile, digest=plan.digest
    )
    if rival == "cytopave level 0":  # what the others write
        target = target.model_copy(update={"levels": target.levels[:1], "direct": 1})
    plan = plan.model_copy(update={"target": target})
    scanned = [tuple(chain.from_iterable(batches)) for batches in grouped(plan.batches, GROUPS)]
    for tiles in scanned:
        stages.scan_tiles(plan, tiles)
    plan.target.create(stages.resolve_run(plan, scanned).final.dtype)
    written = grouped(plan.target.blocks(), GROUPS)
    for blocks in written:
        stages.write_blocks(plan, blocks)
    stages.count_seams(plan, written)
    plan.target.writer().finish()
    plan.target.publish({})


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    what, *arguments = sys.argv[1:]
    if what == "stage":
        stage(*arguments)
    else:
        merge(what, *arguments)
