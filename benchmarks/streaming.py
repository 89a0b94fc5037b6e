"""What it saves to read the next tiles and finish the last ones while one is computed.

    python benchmarks/streaming.py --folder FOLDER [--side 8192] [--tiles 2048 512] [--repeat 3]

One process runs the engine's own loop over all tiles of an image (`segment_tiles`, no Prefect) with
a threshold, once with one tile in hand, which is one after the other, and once with as many as a
plan allows. The variants alternate; medians are printed. Tile files are compared byte by byte.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from bench_images import THRESHOLD, write_image
from tables import machine, print_table

from cytopave.engine.merge import Merge
from cytopave.engine.planning.budget import host_budget
from cytopave.engine.planning.planner import make_plan
from cytopave.engine.segment import segment_tiles
from cytopave.engine.segmenters import Threshold
from cytopave.engine.tiling import Tiling

STAGES = ("batch", "segment", "wait", "read", "commit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for images and tile files")
    parser.add_argument("--side", type=int, default=8192)
    parser.add_argument("--tiles", type=int, nargs="+", default=[2048, 512])
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    print(machine())
    for tile in args.tiles:
        image = args.folder / f"disks-{args.side}-{tile}.zarr"
        write_image(image, args.side, tile)
        runs: dict[int, list[dict[str, float]]] = {}
        digests = set()
        for _ in range(args.repeat):
            for in_flight in (1, 0):
                seconds, digest, used = run(image, args.folder / "scratch", tile, in_flight)
                runs.setdefault(used, []).append(seconds)
                digests.add(digest)
        assert len(digests) == 1, "the tile files differ"
        rows = [
            {"tiles in hand": n}
            | {s: f"{statistics.median(r[s] for r in seen):.2f}" for s in seen[0]}
            for n, seen in runs.items()
        ]
        print_table(f"{args.side} x {args.side}, tile {tile}: seconds", rows)


def run(image: Path, scratch: Path, tile: int, in_flight: int) -> tuple[dict[str, float], str, int]:
    """Segment all tiles; returns seconds, a digest of the tile files, and tiles in hand."""
    shutil.rmtree(scratch, ignore_errors=True)
    plan: Any = make_plan(
        str(image),
        segmenter=Threshold(threshold=THRESHOLD),
        tiling=Tiling(tile=(tile, tile), halo=64),
        merge=Merge(),
        budget=host_budget(1),
        workers=1,
        batch_seconds=1e6,
        name="cells",
        output=str(scratch / "labels.zarr"),
        scratch=scratch / "tiles",
    )
    if in_flight:
        plan = plan.model_copy(update={"in_flight": in_flight})
    begun, cpu = time.perf_counter(), time.process_time()
    work = segment_tiles(plan, tuple(range(len(plan.grid))))
    seconds = {"wall": time.perf_counter() - begun, "CPU": time.process_time() - cpu}
    digest = hashlib.sha256()
    for index in sorted(plan.scratch.finished()):
        archive = plan.scratch.open(index)
        for array in archive.read(*archive.index):
            digest.update(array.tobytes())
    return seconds | {s: work.seconds[s] for s in STAGES}, digest.hexdigest(), plan.in_flight


if __name__ == "__main__":
    main()
