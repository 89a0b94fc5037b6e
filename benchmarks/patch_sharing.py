"""How many patches tiles evaluate beyond those of the undivided image, and how much they read.

    python benchmarks/patch_sharing.py [--side 8192] [--halo 64]

Arithmetic alone: no image is read. "Alone" is a tile that shares nothing; a worker that segments a
compact block of tiles keeps the patches that they share.
"""

from __future__ import annotations

import argparse

import unpacked  # noqa: F401 - before cytopave

# isort: split

from cytopave.engine.boxes import Box
from cytopave.engine.cellpose_fast.patches import axis
from cytopave.engine.segmenters.cellpose_placed import region
from cytopave.engine.tiling import Grid


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=8192)
    parser.add_argument("--halo", type=int, default=64)
    options = parser.parse_args()
    total = len(axis(options.side).starts) ** 2
    blocks = (1, 2, 4)
    print(f"{options.side} x {options.side} pixels, halo {options.halo}: {total} patches")
    print(f"| tile | read | {' | '.join(f'{n} x {n} tiles' for n in blocks)} |")
    print(f"| --- | --- |{' --- |' * len(blocks)}")
    for tile in (512, 1024, 2048, 4096):
        grid = Grid((options.side,) * 2, (tile,) * 2, (options.halo,) * 2)
        shares = [f"{evaluated(grid, n) / total:.2f}" for n in blocks]
        print(f"| {tile} | {read(grid):.2f} | {' | '.join(shares)} |")


def evaluated(grid: Grid, block: int) -> int:
    """Patches that are evaluated if each block of tiles evaluates what it needs once."""
    rows = axis(grid.shape[0])
    count = 0
    for indices in grid.blocks((block, block)):
        needed = set()
        for i in indices:
            window = grid[i].window
            spans = [rows.span(a, b) for a, b in zip(window.start, window.stop, strict=True)]
            needed |= {(j, k) for j in spans[0].patches for k in spans[1].patches}
        count += len(needed)
    return count


def read(grid: Grid) -> float:
    """Pixels that all tiles are given, per pixel of the image."""
    regions = (region(tile.window, grid.shape, rescale=1.0) for tile in grid)
    return sum(r.size for r in regions) / Box.of(grid.shape).size


if __name__ == "__main__":
    main()
