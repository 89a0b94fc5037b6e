"""What a table costs a run: nothing wanted, the image read again for it, or measured in the tiles.

    python benchmarks/one_reading.py --folder FOLDER [--side 8192] [--tile 512] [--halo 16]

Round objects under a threshold, so that segmentation itself costs next to nothing. Each run is a
process of its own with one thread, by the engine's own stages, without Prefect and Dask: CPU
seconds (with those of its threads) of segmentation, merge and table, bytes of pixels decoded of the
image, and bytes of the tile files. *read again* measures the finished labels as `measure_cells`
does, which is what runs did before tiles were measured while they are in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench_images import n_objects, write_image
from tables import machine, print_table

WAYS = ("no table", "read again", "in the tiles")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for images and results")
    parser.add_argument("--side", type=int, default=8192)
    parser.add_argument("--tile", type=int, default=512)
    parser.add_argument("--halo", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help="one run in this process; prints JSON")
    args = parser.parse_args()
    image = args.folder / f"disks-{args.side}-{args.tile}.zarr"
    if args.way:
        print(json.dumps(run(args, image)))
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    write_image(image, args.side, args.tile)
    print(machine())
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(args.repeat):
        for way in WAYS:
            runs[way].append(fresh(way))
    rows = [{"": way, **median(found)} for way, found in runs.items()]
    title = f"{args.side} x {args.side}, tiles of {args.tile}, halo {args.halo}"
    print_table(f"{title}, {n_objects(args.side)} objects", rows)


def fresh(way: str) -> dict[str, float]:
    """One run in a new process."""
    command = [sys.executable, *sys.argv, "--way", way]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def median(runs: list[dict[str, float]]) -> dict[str, str]:
    return {name: f"{statistics.median(r[name] for r in runs):.1f}" for name in runs[0]}


def run(args: argparse.Namespace, image: Path) -> dict[str, float]:
    """Segment, merge, measure; the figures of each."""
    from cytopave.engine.omezarr.image import Image

    decoded = 0
    read_block = Image.read_block

    def counted(self: Image, box: Any) -> Any:
        nonlocal decoded
        block = read_block(self, box)
        if self.url == str(image):
            decoded += block.nbytes
        return block

    Image.read_block = counted  # type: ignore[method-assign]
    plan = planned(args, image)
    found: dict[str, float] = {}
    for name, stage in (("segment", segment), ("merge", merge), ("table", table(args.way))):
        since = time.process_time()
        stage(plan)
        found[f"{name}: CPU s"] = time.process_time() - since
        if name == "segment":
            files = plan.root.rglob("*.zip")
            found["tile files MB"] = sum(path.stat().st_size for path in files) / 1e6
    found["all: CPU s"] = sum(value for name, value in found.items() if "CPU" in name)
    found["decoded MB"] = decoded / 1e6
    shutil.rmtree(args.folder / "run")
    return found


def planned(args: argparse.Namespace, image: Path) -> Any:
    from cytopave.engine.merge import Merge
    from cytopave.engine.planning.budget import host_budget
    from cytopave.engine.planning.planner import make_plan
    from cytopave.engine.segmenters import Threshold
    from cytopave.engine.tiling import Tiling

    plan = make_plan(
        str(image),
        segmenter=Threshold(),
        tiling=Tiling(tile=(args.tile, args.tile), halo=args.halo),
        merge=Merge(),
        budget=host_budget(1),
        workers=1,
        batch_seconds=20,
        name="cells",
        output=str(args.folder / "run" / "labels.zarr"),
        scratch=args.folder / "run" / "scratch",
        measure=args.way == "in the tiles",
    )
    plan.save()
    return plan


def segment(plan: Any) -> None:
    from cytopave.engine.segment import segment_tiles

    for batch in plan.batches:
        segment_tiles(plan, batch)


def merge(plan: Any) -> None:
    from cytopave.engine.merge import stages

    groups = [tuple(range(len(plan.grid)))]
    stages.scan_tiles(plan, groups[0])
    plan.target.create(stages.resolve_run(plan, groups).final.dtype)
    stages.write_blocks(plan, list(plan.target.blocks()))
    plan.target.writer().finish()


def table(way: str) -> Any:
    from cytopave.engine.tables import stages
    from cytopave.engine.tables.planner import plan_measurement, plan_run

    def wanted(plan: Any) -> None:
        if way == "read again":
            plan.target.publish({"merge": plan.merge.model_dump()})
            store = str(plan.target.store)
            measurement = plan_measurement(
                plan.image.url, labels=f"{store}/labels/cells", scratch=plan.root, output=store
            )
            for group in range(len(measurement.groups)):
                stages.measure_group(measurement, group)
            stages.write_table(measurement, {})
        elif way == "in the tiles":
            stages.write_table(plan_run(plan), {})

    return wanted


if __name__ == "__main__":
    main()
