"""What tiling and merging cost: a threshold on many small tiles, beside patchworks.

The segmentation function costs next to nothing, so that what is measured is everything else:
reading the image, keeping tiles, finding seams, writing one label image; and Prefect, Dask and
the processes.

    python benchmarks/overhead.py --folder FOLDER [--side 8192] [--tiles 512 256] [--repeat 3]

Each run is a fresh process, measured with all its descendants by the kernel (measure.py). The
rivals alternate, so that a machine that is busier for a while is so for all. Each is also run on an
image of 2 x 2 tiles: what that costs is the fixed start-up (imports, Prefect's temporary server,
the worker processes), and *net* is what is left when it is subtracted. Every result is compared
with the truth, pixel by pixel and object by object. The first runs are not counted: they make
Prefect's database, which all others use, as an operator's would.

patchworks is GPL-3.0: it runs in an environment of its own (``make peers``).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import zarr
from bench_images import check, n_objects, write_image
from measure import Usage, measure
from tables import machine, print_table

HERE = Path(__file__).parent
HALO = 16
PEERS = HERE.parent / ".venv-peers" / "bin" / "python"
RIVALS = ("cytopave", "patchworks iou", "patchworks touch")
FIELDS = ("cpu", "wall", "peak_mb", "read_mb", "written_mb")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for images and results")
    parser.add_argument("--side", type=int, nargs="+", default=[8192], help="length of the image")
    parser.add_argument("--tiles", type=int, nargs="+", default=[512, 256], help="lengths of tiles")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rivals", nargs="+", choices=RIVALS, default=RIVALS)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    print(machine(PEERS, "patchworks", "zarr", "dask"))
    compare(argparse.Namespace(**{**vars(args), "repeat": 1}), args.tiles[0], 2 * args.tiles[0])
    for tile in args.tiles:
        fixed = compare(args, tile, 2 * tile)
        for side in args.side:
            full = compare(args, tile, side)
            show(tile, side, fixed, full)


def compare(args: argparse.Namespace, tile: int, side: int) -> dict[str, Usage]:
    """The median of each figure over the runs of each rival."""
    image = args.folder / f"disks-{side}-{tile}.zarr"
    write_image(image, side, tile)
    expected = n_objects(side)
    runs: dict[str, list[Usage]] = {rival: [] for rival in args.rivals}
    for _ in range(args.repeat):
        for rival in args.rivals:
            usage, labels = run(rival, image, args.folder / "run", tile)
            found = check(labels, side)
            assert found == expected, f"{rival}: {found} objects instead of {expected}"
            shutil.rmtree(args.folder / "run")
            runs[rival].append(usage)
            print(f"# {rival} {side} {tile}: {short(usage)}", file=sys.stderr, flush=True)
    return {rival: median(usages) for rival, usages in runs.items()}


def run(rival: str, image: Path, folder: Path, tile: int) -> tuple[Usage, Any]:
    """Run a rival once; returns what it cost and its labels at full resolution."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    output = folder / "labels.zarr"
    name, _, rule = rival.partition(" ")
    python = sys.executable if name == "cytopave" else str(PEERS)
    command = [python, str(HERE / f"run_{name}.py"), str(image), str(output), str(tile), str(HALO)]
    usage = measure([*command, rule] if rule else command, env=environment(folder.parent))
    path = output / ("labels/cells/0" if name == "cytopave" else "labels")
    return usage, zarr.open_array(str(path), mode="r")


def environment(folder: Path) -> dict[str, str]:
    """One thread a worker, a fresh Prefect home, nothing sent to anybody."""
    left_out = ("PREFECT_", "CYTOPAVE_", "PYTHONDONTWRITE")
    env = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    env |= dict.fromkeys(threads, "1")
    return env | {
        "DO_NOT_TRACK": "1",
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    }


def show(tile: int, side: int, fixed: dict[str, Usage], full: dict[str, Usage]) -> None:
    """One table: raw figures, start-up, net, and net beside cytopave's."""
    tiles = (side // tile) ** 2
    title = f"{side} x {side}, {tiles} tiles of {tile}, halo {HALO}, {n_objects(side)} objects"
    ours = full["cytopave"].cpu - fixed["cytopave"].cpu if "cytopave" in full else 0.0
    rows = []
    for rival, usage in full.items():
        net = usage.cpu - fixed[rival].cpu
        rows.append(
            {
                "": rival,
                "CPU s": f"{usage.cpu:.1f}",
                "start-up CPU s": f"{fixed[rival].cpu:.1f}",
                "net CPU s": f"{net:.1f}",
                "net / ours": f"{net / ours:.2f}" if ours else "",
                "ms / tile": f"{1000 * net / tiles:.1f}",
                "wall s": f"{usage.wall:.1f}",
                "start-up wall s": f"{fixed[rival].wall:.1f}",
                "peak MB": f"{usage.peak_mb:.0f}",
                "read MB": f"{usage.read_mb:.0f}",
                "net read MB": f"{usage.read_mb - fixed[rival].read_mb:.0f}",
                "net written MB": f"{usage.written_mb - fixed[rival].written_mb:.0f}",
            }
        )
    print_table(title, rows)


def median(usages: list[Usage]) -> Usage:
    middle = {f: statistics.median(getattr(u, f) for u in usages) for f in FIELDS}
    return Usage(**middle, processes=usages[0].processes, output="")


def short(usage: Usage) -> str:
    return ", ".join(f"{f} {getattr(usage, f):.1f}" for f in FIELDS)


if __name__ == "__main__":
    main()
