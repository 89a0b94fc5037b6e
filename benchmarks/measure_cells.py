"""Memory and time of a table, by the number of objects.

    python benchmarks/measure_cells.py --folder FOLDER [--objects 10000 100000 1000000 10000000]

Square objects of 8 x 8 pixels, 100 pixels of image for each, uint16, zarr chunks of 512 (image) and
1024 (labels). *Sums* reads image and labels and keeps the partial sums, group by group as workers
do, here one process for all of them. *Table* joins the sums and writes the table. *CSV* copies it.
Each is a process of its own; memory is the process' peak, as the kernel tells it.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tables import machine, print_table

if TYPE_CHECKING:
    from cytopave.engine.tables.measurement import Measurement

SIDE, PITCH = 8, 10
BLOCK = 2048  # pixels that are written at once
PARTS = ("sums", "table", "csv")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--objects", type=int, nargs="+", default=[10**k for k in (4, 5, 6, 7)])
    parser.add_argument("--part", choices=("make", *PARTS))
    args = parser.parse_args()
    if args.part == "make":
        make(args.folder, args.objects[0])
    elif args.part:
        print(json.dumps(part_of(args.part, args.folder)))
    else:
        print(machine(), flush=True)
        rows = [run(args.folder / str(n), n) for n in args.objects]
        print_table("One process, by the number of objects", rows)


def run(folder: Path, objects: int) -> dict[str, Any]:
    """All parts for one number of objects, each in a process of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    child("make", folder, objects)
    row: dict[str, Any] = {"objects": round(objects**0.5) ** 2}
    for part in PARTS:
        found = json.loads(child(part, folder, objects))
        if part != "sums" and found["objects"] != row["objects"]:
            raise SystemExit(f"{found['objects']} of {row['objects']} objects are in the table")
        row[f"{part}: peak MB"] = f"{found['peak_mb']:.0f}"
        row[f"{part}: s"] = f"{found['seconds']:.1f}"
    size = sum(p.stat().st_size for p in (folder / "out.zarr").rglob("*") if p.is_file())
    row["table, bytes a row"] = f"{size / row['objects']:.0f}"
    shutil.rmtree(folder)
    return row


def child(part: str, folder: Path, objects: int) -> str:
    options = ["--folder", str(folder), "--objects", str(objects), "--part", part]
    command = [sys.executable, __file__, *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def make(folder: Path, objects: int) -> None:
    """Write the image and its labels, block by block."""
    import numpy as np
    import zarr

    from cytopave.engine.boxes import Box

    per_row = round(objects**0.5)
    shape = (per_row * PITCH, per_row * PITCH)
    arrays = [
        zarr.create_array(str(folder / name), shape=shape, dtype=dtype, chunks=(chunk, chunk))
        for name, dtype, chunk in (("image.zarr", "u2", 512), ("labels.zarr", "u4", 1024))
    ]
    for box in Box.of(shape).blocks((BLOCK, BLOCK)):
        y, x = (np.arange(a, b) for a, b in zip(box.start, box.stop, strict=True))
        ids = (y // PITCH * per_row)[:, None] + x // PITCH + 1
        inside = (y % PITCH < SIDE)[:, None] & (x % PITCH < SIDE)
        arrays[0][box.slices] = (ids % 4096 + (y % 16)[:, None]).astype("u2")
        arrays[1][box.slices] = np.where(inside, ids, 0).astype("u4")


def part_of(part: str, folder: Path) -> dict[str, Any]:
    from cytopave.engine.tables import stages
    from cytopave.engine.tables.export import export_csv
    from cytopave.engine.tables.read import open_table

    since = time.perf_counter()
    if part == "csv":
        table = open_table(folder / "out.zarr", "labels")
        export_csv(table, folder / "table.csv")
        objects = len(table)
    else:
        plan = planned(folder)
        if part == "sums":
            for group in range(len(plan.groups)):
                stages.measure_group(plan, group)
            objects = 0
        else:
            objects = stages.write_table(plan, {})
            plan.target.publish()
    return {
        "objects": objects,
        "seconds": time.perf_counter() - since,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
    }


def planned(folder: Path) -> Measurement:
    from cytopave.engine.tables.planner import plan_measurement

    return plan_measurement(
        str(folder / "image.zarr"),
        labels=str(folder / "labels.zarr"),
        output=str(folder / "out.zarr"),
        scratch=folder / "scratch",
    )


if __name__ == "__main__":
    main()
