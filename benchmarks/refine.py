"""Memory and time of refining labels, by the number of objects.

    python benchmarks/refine.py --folder FOLDER [--objects 10000 100000 1000000]

Square objects of 9 x 9 pixels, four of which touch each other around a gap, 144 pixels of image
for each; every second one has a hole of 3 x 3. Chunks of 512. Holes are filled, objects of the
border removed, the rest is grown by 3 pixels and numbered. *Look* and *paint* go over all blocks,
as workers do, here one process for all of them; *decide* is done once. Each is a process of its
own; memory is the largest peak of any step, as the kernel tells it.
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
    from cytopave.engine.refine.refinement import Refinement

PITCH = 24  # of a group of 2 x 2 objects
BLOCK = 96 * PITCH  # pixels that are written at once
MAKE = -1  # a process of its own, since a child's peak begins at its parent's memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--objects", type=int, nargs="+", default=[10**k for k in (4, 5, 6)])
    parser.add_argument("--phase", type=int)
    args = parser.parse_args()
    if args.phase == MAKE:
        make(args.folder, side(args.objects[0]))
    elif args.phase is not None:
        print(json.dumps(phase_of(args.folder, args.phase)))
    else:
        print(machine(), flush=True)
        rows = [run(args.folder / str(n), n) for n in args.objects]
        print_table("One process, by the number of objects", rows)


def side(objects: int) -> int:
    """Groups of objects in a row."""
    number: int = round((objects / 4) ** 0.5)
    return number


def run(folder: Path, objects: int) -> dict[str, Any]:
    """All phases for one number of objects, each in a process of its own."""
    from cytopave.engine.refine import stages

    shutil.rmtree(folder, ignore_errors=True)
    child(folder, MAKE, objects)
    plan, per_row = planned(folder), side(objects)
    peaks = dict.fromkeys(("look", "decide", "paint"), 0.0)
    times = dict.fromkeys(peaks, 0.0)
    for number, phase in enumerate(stages.phases(plan)):
        found = json.loads(child(folder, number, objects))
        peaks[phase.act] = max(peaks[phase.act], found["peak_mb"])
        times[phase.act] += found["seconds"]
    seconds = time.perf_counter()
    report = stages.publish(plan, {})
    seconds = time.perf_counter() - seconds
    wanted = 4 * per_row * per_row - 2 * (4 * per_row) + 4
    if report.n_objects != wanted or report.operations[0].changed != 9 * 2 * per_row**2:
        raise SystemExit(f"{report} where {wanted} objects are right")
    row: dict[str, Any] = {"objects": report.n_before}
    for act, peak in peaks.items():
        row[f"{act}: peak MB"] = f"{peak:.0f}"
        row[f"{act}: s"] = f"{times[act]:.1f}"
    row["publish: s"] = f"{seconds:.1f}"
    shutil.rmtree(folder)
    return row


def child(folder: Path, phase: int, objects: int) -> str:
    options = ["--folder", str(folder), "--phase", str(phase), "--objects", str(objects)]
    command = [sys.executable, __file__, *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def make(folder: Path, per_row: int) -> None:
    """Write the labels, block by block."""
    import numpy as np
    import zarr

    from cytopave.engine.boxes import Box

    shape = (per_row * PITCH, per_row * PITCH)
    array = zarr.create_array(
        str(folder / "labels.zarr"), shape=shape, dtype="u4", chunks=(512, 512)
    )
    for box in Box.of(shape).blocks((BLOCK, BLOCK)):
        y, x = (np.arange(a, b) for a, b in zip(box.start, box.stop, strict=True))
        # 0 ... 8 one object, 9 ... 17 the next one; of both the corners that meet are taken away
        objects = [(axis // PITCH * 2 + axis % PITCH // 9)[:, None] for axis in (y, x)]
        ids = objects[0] * (2 * per_row) + objects[1].T + 1
        place = [(axis % PITCH)[:, None] for axis in (y, x)]
        inside = (place[0] < 18) & (place[1].T < 18)
        gap = (abs(place[0] - 8.5) < 2) & (abs(place[1].T - 8.5) < 2)
        hole = (abs(place[0] % 9 - 4) < 2) & (abs(place[1].T % 9 - 4) < 2)
        hole &= (objects[0] + objects[1].T) % 2 == 0
        array[box.slices] = np.where(inside & ~gap & ~hole, ids, 0).astype("u4")


def phase_of(folder: Path, number: int) -> dict[str, Any]:
    from cytopave.engine.refine import stages

    plan = planned(folder)
    phase = list(stages.phases(plan))[number]
    since = time.perf_counter()
    if phase.act == "decide":
        stages.decide(plan, phase.step)
    else:
        for group in range(len(plan.groups)):
            getattr(stages, phase.act)(plan, phase.step, group)
    return {
        "seconds": time.perf_counter() - since,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
    }


def planned(folder: Path) -> Refinement:
    from cytopave.engine.refine import ClearBorder, Expand, FillHoles, Relabel
    from cytopave.engine.refine.planner import plan_refinement

    operations: list[Any] = [FillHoles(), ClearBorder(margin=6), Expand(distance=3), Relabel()]
    return plan_refinement(
        str(folder / "labels.zarr"), operations, scratch=folder / "scratch", name="refined"
    )


if __name__ == "__main__":
    main()
