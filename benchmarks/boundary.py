"""How long a worker has nothing to compute when one Prefect task ends and the next one begins.

    python benchmarks/boundary.py FOLDER [--tasks 12]

One worker, a temporary API, tiles of 256 x 256 pixels; the function notes when it was called and
when it returned. Printed: the median and the longest time from a return to the next call, within a
task and between tasks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

TILE, PER_TASK = 256, 4


def noted(tile: Any, *, path: str) -> Any:
    """Takes 20 ms, and writes a line with the times of its begin and end."""
    import numpy as np

    since = time.perf_counter()
    time.sleep(0.02)
    with open(path, "a") as file:
        file.write(json.dumps([since, time.perf_counter()]) + "\n")
    return np.zeros(tile.shape, np.int32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tasks", type=int, default=12)
    args = parser.parse_args()
    folder = args.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ |= {
        "DO_NOT_TRACK": "1",
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # The planner takes 1 megapixel a second for a function of which it knows nothing.
        "CYTOPAVE_BATCH_SECONDS": str(PER_TASK * TILE**2 / 1e6),
        "PYTHONPATH": f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    run(folder, args.tasks)
    calls = [json.loads(line) for line in (folder / "calls").read_text().splitlines()]
    gaps = [after[0] - before[1] for before, after in itertools.pairwise(calls)]
    between = gaps[PER_TASK - 1 :: PER_TASK]
    within = [gap for i, gap in enumerate(gaps) if (i + 1) % PER_TASK]
    for name, values in (("within a task", within), ("between tasks", between)):
        middle, most = (1e3 * f(values) for f in (statistics.median, max))
        print(f"{name}: median {middle:.0f} ms, longest {most:.0f} ms of {len(values)}")


def run(folder: Path, tasks: int) -> None:
    """Segment a black image of as many 2 x 2 tiles as there shall be tasks."""
    import zarr

    from cytopave.engine.segmenters import Custom
    from cytopave.engine.tiling import Tiling
    from cytopave.flows import segment_image

    shape = (2 * TILE, 2 * TILE * tasks)
    zarr.create_array(str(folder / "a.zarr"), shape=shape, chunks=(TILE, TILE), dtype="u2")
    segment_image(
        str(folder / "a.zarr"),
        segmenter=Custom(function="boundary:noted", kwargs={"path": str(folder / "calls")}),
        tiling=Tiling(tile=(TILE, TILE), halo=16),
        cluster="cpu",
        workers=1,
    )


if __name__ == "__main__":
    main()
