"""How many patches tiles evaluate beyond those of the undivided image, and how much they read.

    python benchmarks/patch_sharing.py [--side 8192] [--halo 64] [--planes 64]

Arithmetic alone: no image is read. "Alone" is a tile that shares nothing; a worker that segments a
compact block of tiles keeps the patches that they share. With --planes, a stack in three dimensions
in tiles that hold all of them.
"""

from __future__ import annotations

import argparse
import itertools

import unpacked  # noqa: F401 - before cytopave

# isort: split

from cytopave.engine.boxes import Box
from cytopave.engine.cellpose_fast.passes import PASSES, Volume, Window
from cytopave.engine.patchwise.grid import axis
from cytopave.engine.segmenters.cellpose_placed import region
from cytopave.engine.tiling import Grid


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=8192)
    parser.add_argument("--halo", type=int, default=64)
    parser.add_argument("--planes", type=int, help="of a stack in three dimensions")
    options = parser.parse_args()
    volume = Volume() if options.planes else None
    flat = (options.planes,) if options.planes else ()
    shape = (*flat, options.side, options.side)
    total = len(_patches(Box.of(shape), shape))
    blocks = (1, 2, 4)
    print(f"{' x '.join(map(str, shape))} pixels, halo {options.halo}: {total} patches")
    print(f"| tile | read | {' | '.join(f'{n} x {n} tiles' for n in blocks)} |")
    print(f"| --- | --- |{' --- |' * len(blocks)}")
    for tile in (256, 512, 1024, 2048) if volume else (512, 1024, 2048, 4096):
        grid = Grid(shape, (*flat, tile, tile), (0,) * len(flat) + (options.halo,) * 2)
        shares = [f"{evaluated(grid, n) / total:.2f}" for n in blocks]
        print(f"| {tile} | {read(grid, volume):.2f} | {' | '.join(shares)} |")


def evaluated(grid: Grid, block: int) -> int:
    """Patches that are evaluated if each block of tiles evaluates what it needs once."""
    count = 0
    for indices in grid.blocks((1,) * (len(grid.shape) - 2) + (block, block)):
        needed: set[tuple[int, ...]] = set()
        for i in indices:
            needed |= _patches(grid[i].window, grid.shape)
        count += len(needed)
    return count


def _patches(window: Box, shape: tuple[int, ...]) -> set[tuple[int, ...]]:
    """What names each patch that a window needs."""
    if len(shape) == 2:
        spans = [
            axis(n).span(a, b) for n, a, b in zip(shape, window.start, window.stop, strict=True)
        ]
        return set(itertools.product(*(span.patches for span in spans)))
    needed = Window.of(window, shape, Volume(), rescale=1.0).spans
    return {
        (one.across, *at)
        for one in PASSES
        for at in itertools.product(
            range(*needed[one.across].wanted), *(needed[k].patches for k in one.along)
        )
    }


def read(grid: Grid, volume: Volume | None) -> float:
    """Pixels that all tiles are given, per pixel of the image."""
    regions = (region(tile.window, grid.shape, rescale=1.0, volume=volume) for tile in grid)
    return sum(r.size for r in regions) / Box.of(grid.shape).size


if __name__ == "__main__":
    main()
