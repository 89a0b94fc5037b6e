"""The merge alone, of tiles that are segmented already, beside patchworks and dask-image.

    python benchmarks/merge_only.py --folder FOLDER [--side 8192 16384] [--tiles 512 256]

Tiles are staged before, each tool's in its own form, and not measured: for cytopave the tile files
of a run; for patchworks, through its ``stage_tile``, one store of labels with the counts of labels
and the strips that its ``iou`` rule compares; dask-image gets patchworks' store. What is measured
ends with one label image on disk. cytopave's has a pyramid, a seam report and ids 1..n besides;
the others' are single arrays with gaps between the ids, so "cytopave level 0" writes no more than
that level. All figures as in overhead.py.

dask-image has no public function for this; its own ``label`` calls the ones used here.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import zarr
from bench_images import check, n_objects, write_image
from measure import Usage, measure
from overhead import HALO, HERE, PEERS, environment, median, short
from tables import machine, print_table

RIVALS = ("cytopave", "cytopave level 0", "patchworks iou", "patchworks touch", "dask-image")
PUBLISHED = "labels/cells/0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for images and results")
    parser.add_argument("--side", type=int, nargs="+", default=[8192], help="length of the image")
    parser.add_argument("--tiles", type=int, nargs="+", default=[512, 256], help="lengths of tiles")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rivals", nargs="+", choices=RIVALS, default=RIVALS)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    print(machine(PEERS, "patchworks", "dask-image", "zarr", "dask"))
    for tile in args.tiles:
        fixed = compare(args, tile, 2 * tile)
        for side in args.side:
            show(tile, side, fixed, compare(args, tile, side))


def compare(args: argparse.Namespace, tile: int, side: int) -> dict[str, Usage]:
    """The median of each figure over the runs of each rival."""
    image = args.folder / f"disks-{side}-{tile}.zarr"
    write_image(image, side, tile)
    staged = args.folder / "staged"
    shutil.rmtree(staged, ignore_errors=True)
    for name in {command_of(rival)[1] for rival in args.rivals}:
        python = command_of(name)[0]
        script = str(HERE / f"run_merge_{name}.py")
        arguments = [str(image), str(staged / name), str(tile), str(HALO)]
        subprocess.run(
            [python, script, "stage", *arguments], check=True, env=environment(staged.parent)
        )
    expected = n_objects(side)
    runs: dict[str, list[Usage]] = {rival: [] for rival in args.rivals}
    for _ in range(args.repeat):
        for rival in args.rivals:
            usage, labels = run(rival, staged)
            found = check(labels, side)
            assert found == expected, f"{rival}: {found} objects instead of {expected}"
            runs[rival].append(usage)
            print(f"# {rival} {side} {tile}: {short(usage)}", file=sys.stderr, flush=True)
    shutil.rmtree(staged)
    return {rival: median(usages) for rival, usages in runs.items()}


def command_of(rival: str) -> tuple[str, str]:
    """Interpreter and script (``run_merge_...``) of a rival."""
    ours = rival.startswith("cytopave")
    return (sys.executable, "cytopave") if ours else (str(PEERS), "peers")


def run(rival: str, staged: Path) -> tuple[Usage, Any]:
    """Merge what was staged; returns what it cost and the labels."""
    python, name = command_of(rival)
    output = staged / "merged.zarr"
    shutil.rmtree(output, ignore_errors=True)
    command = [python, str(HERE / f"run_merge_{name}.py"), rival, str(staged / name), str(output)]
    usage = measure(command, env=environment(staged.parent))
    path = output / (PUBLISHED if name == "cytopave" else "labels")
    return usage, zarr.open_array(str(path), mode="r")


def show(tile: int, side: int, fixed: dict[str, Usage], full: dict[str, Usage]) -> None:
    """One table: raw figures, start-up, net, and net beside cytopave's."""
    tiles = (side // tile) ** 2
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
                "peak MB": f"{usage.peak_mb:.0f}",
                "net read MB": f"{usage.read_mb - fixed[rival].read_mb:.0f}",
                "net written MB": f"{usage.written_mb - fixed[rival].written_mb:.0f}",
            }
        )
    print_table(f"Merge of {side} x {side}, {tiles} tiles of {tile}, halo {HALO}", rows)


if __name__ == "__main__":
    main()
