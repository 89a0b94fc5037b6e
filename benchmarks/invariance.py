"""Do the tiles change the cells? Cellpose's stock path and the fast path, tiled against untiled.

    python benchmarks/invariance.py [--fields 4] [--tiles 256 384 512 1024] [--halo 64] [--out FILE]
    python benchmarks/invariance.py --volume [--stacks 2] [--out FILE]

A mosaic of real held-out fields of nuclei, or a real stack in three dimensions (or a mosaic of it,
turned from place to place), is segmented in one piece and in tiles that are merged, with the small
network in float32 on the CPU. What is compared is the final label image: each object of the
undivided image with what became of it.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import unpacked  # noqa: F401 - before cytopave

# isort: split

import numpy as np
from agreement import agreement

from cytopave.engine import samples
from cytopave.engine.merge import Merge, paint, resolve, scan
from cytopave.engine.score import average_precision
from cytopave.engine.scratch.tiles import OpenTiles, Scratch
from cytopave.engine.segmenters import Cellpose, cellpose_weights
from cytopave.engine.segmenters.checks import checked
from cytopave.engine.segmenters.place import Place
from cytopave.engine.tiling import Grid

if TYPE_CHECKING:
    from collections.abc import Iterable

COLUMNS = (
    *("path", "tile / halo", "objects", "identical", "IoU >= 0.97", "IoU >= 0.9"),
    *("lowest IoU", "fused", "split", "extra"),
)


PATHS = ("stock", "fast")

type Cut = tuple[tuple[int, ...], tuple[int, ...]]
"""Tile and halo."""

STACK_CUTS: tuple[Cut, ...] = (
    ((60, 128, 128), (0, 48, 48)),
    ((30, 256, 256), (24, 0, 0)),
    ((30, 128, 128), (24, 48, 48)),
)
"""Along Y and X, along Z, and along all; nuclei are about 50 pixels wide and 30 planes high."""

MOSAIC_CUTS: tuple[Cut, ...] = (
    ((60, 256, 256), (0, 64, 64)),
    ((60, 384, 384), (0, 64, 64)),
    ((30, 256, 256), (24, 64, 64)),
)
"""For a mosaic of stacks, of 512 x 512 pixels and more."""


def main() -> None:
    """Print the table, row by row."""
    options = _options()
    if options.volume:
        image = turned_mosaic(samples.nuclei3d().image, options.stacks)
        cuts = MOSAIC_CUTS if options.stacks > 1 else STACK_CUTS
        resolved = {path: stack_segmenter(path) for path in PATHS}
    else:
        fields = samples.nuclei_fields("held-out")
        image, _ = samples.mosaic(fields, options.fields, options.fields)
        cuts = tuple(((side,) * 2, (options.halo,) * 2) for side in options.tiles)
        resolved = {path: _segmenter(path) for path in PATHS}
    lines = [f"{' x '.join(map(str, image.shape))} pixels", "", _line(COLUMNS)]
    lines.append(_line(["---"] * len(COLUMNS)))
    print("\n".join(lines), flush=True)
    untiled: dict[str, np.ndarray] = {}
    for path, segmenter in resolved.items():
        if path not in options.paths and options.stacks > 1:
            continue
        since = time.process_time()
        untiled[path] = segmenter.load()(image)
        print(f"{path}, untiled: {time.process_time() - since:.0f} CPU s", flush=True)
    if options.volume and options.stacks == 1:
        _compare(untiled | {"truth": samples.nuclei3d().masks})
    for path, cut in itertools.product(options.paths, cuts):
        since = time.process_time()
        row = _row(path, cut, untiled[path], tiled(image, resolved[path], cut))
        lines.append(row)
        print(f"{row}  {time.process_time() - since:.0f} CPU s", flush=True)
        if options.out:
            Path(options.out).write_text("\n".join(lines) + "\n")


def turned_mosaic(stack: np.ndarray, n: int) -> np.ndarray:
    """A stack n x n times in Y and X, turned by a quarter from place to place; n of 1 is itself."""
    rows = [
        np.concatenate([np.rot90(stack, y * n + x, axes=(1, 2)) for x in range(n)], axis=2)
        for y in range(n)
    ]
    return np.concatenate(rows, axis=1)


def _compare(found: dict[str, np.ndarray]) -> None:
    """Print how well label images of the undivided stack agree with each other."""
    for a, b in itertools.combinations(found, 2):
        scores = [average_precision(found[b], found[a], threshold=t) for t in (0.5, 0.75, 0.9)]
        text = ", ".join(f"{score:.4f}" for score in scores)
        print(f"{a}, {b}: AP at 0.5, 0.75, 0.9 = {text}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fields", type=int, default=4, help="fields of 512 pixels along a side")
    parser.add_argument("--tiles", type=int, nargs="+", default=[256, 384, 512, 1024])
    parser.add_argument("--halo", type=int, default=64)
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=PATHS, help="to be tiled")
    parser.add_argument("--stacks", type=int, default=1, help="stacks along a side, in Y and X")
    parser.add_argument("--volume", action="store_true", help="a stack in three dimensions")
    parser.add_argument("--out")
    return parser.parse_args()


def stack_segmenter(path: str) -> Cellpose:
    """Resolved for `samples.nuclei3d`: a range that leaves out what glows between the nuclei."""
    volume = {"do_3D": True, "diameter": 50.0, "intensity": ((6500.0, 25000.0),), "niter": 333}
    volume["min_size"] = 2000  # a twentieth of a nucleus
    return _segmenter(path).model_copy(update=volume)


def _segmenter(path: str) -> Cellpose:
    """Resolved for the mosaic, whose fields are scaled to the whole range of 16 bits."""
    network = cellpose_weights.inspect(cellpose_weights.find(cellpose_weights.BUNDLED))
    return Cellpose(model=cellpose_weights.BUNDLED, use_bfloat16=False, device="cpu").model_copy(
        update={
            "intensity": ((0.0, 65535.0),),
            "network": network,
            "sha256": network.sha256,
            "niter": 200,
            "path": path,
        }
    )


def tiled(image: np.ndarray, segmenter: Cellpose, cut: Cut) -> np.ndarray:
    """Merged labels of an image that is segmented in tiles."""
    grid = Grid(image.shape, *cut)
    rule = Merge()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Scratch(Path(folder))
        for tile in grid:
            region = segmenter.region(tile.window, image.shape)
            place = Place(f"in {cut}", 0, image.shape, region, tile.window)
            labels = segmenter.at(place)(image[region.slices].copy())
            scratch.commit(grid, tile, checked(labels, tile.window.shape, "Cellpose")[0])
        every = list(range(len(grid)))
        tables = {i: scratch.open(i).read("views")[0] for i in every}
        counts = np.array([len(tables[i]) for i in every])
        resolution = resolve(
            counts, tables.items(), scan(OpenTiles(scratch), grid, every, rule), rule
        )
        out = np.zeros(image.shape, np.uint32)
        for tile in grid:
            out[tile.core.slices] = paint(scratch, grid, resolution, tile.index)
    return out


def _row(path: str, cut: Cut, whole: np.ndarray, merged: np.ndarray) -> str:
    found = agreement(whole, merged)
    shares = [found.identical.mean(), (found.iou >= 0.97).mean(), (found.iou >= 0.9).mean()]
    cells = [
        *(path, " / ".join(map(_lengths, cut)), str(found.objects)),
        *(f"{100 * share:.1f} %" for share in shares),
        f"{found.iou.min():.3f}",
        *(str(n) for n in (found.fused, found.split, found.extra)),
    ]
    return _line(cells)


def _lengths(lengths: tuple[int, ...]) -> str:
    return str(lengths[0]) if len(set(lengths)) == 1 else " x ".join(map(str, lengths))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
