"""What a tile takes of the host's memory where Cellpose computes on CPU cores.

    python benchmarks/host_memory.py [--model nuclei-tiny]

Each window is a process of its own: a small one first, so that the network and its libraries are
there; then the peak of resident memory beyond what was held, beside what the planner counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from typing import Any

import bench_images
import numpy as np
import psutil
import zarr
from sampling import Sampler

from cytopave.engine.boxes import Box
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.segmenters import Cellpose, Segmenter
from cytopave.engine.segmenters.place import Place

WINDOWS = ["512,512", "1024,1024", "2048,2048", "24,128,128", "24,192,192", "40,256,256"]
MIB = 2**20


def main() -> None:
    """Measure each window and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="nuclei-tiny")
    parser.add_argument("--windows", nargs="*", default=WINDOWS)
    parser.add_argument("--path", default="fast")
    parser.add_argument("--one", help="one window, in this process")
    options = parser.parse_args()
    if options.one:
        shape = tuple(map(int, options.one.split(",")))
        print(json.dumps(of_window(options.model, options.path, shape)))
        return
    print("| window | objects | MiB at the peak | bytes a pixel | MiB counted |")
    print("| --- | --- | --- | --- | --- |")
    for window in options.windows:
        command = [sys.executable, __file__, "--model", options.model, "--path", options.path]
        output = subprocess.run([*command, "--one", window], check=True, stdout=subprocess.PIPE)
        row = json.loads(output.stdout)
        print(f"| {' x '.join(window.split(','))} | " + " | ".join(map(str, row.values())) + " |")


def of_window(model: str, path: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """One window: objects, peak, peak a pixel, and the planner's count."""
    wanted = Cellpose(model=model, path=path, do_3D=len(shape) == 3, intensity=((0, 1200),))
    around = (*shape[:-2], *(n + 1024 for n in shape[-2:]))
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/image.zarr"
        zarr.create_array(url, shape=around, chunks=around, dtype="u2")
        image = open_image(url, axes="zyx"[-len(shape) :])
        segmenter = wanted.resolve(image, channels=()).placed_on(gpu=False)
    segment(segmenter, around, (*shape[:-2], 64, 64))
    with Peak() as peak:
        labels = segment(segmenter, around, shape)
    return {
        "objects": int(labels.max()),
        "MiB": round(peak.bytes / MIB),
        "B/px": round(peak.bytes / np.prod(shape), 1),
        "counted": round(segmenter.host_bytes(shape, 2, 1) / MIB),
    }


def segment(segmenter: Segmenter, image: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    """Labels of a window in the middle of an image."""
    start = tuple((n - m) // 2 for n, m in zip(image, shape, strict=True))
    window = Box(start, tuple(a + n for a, n in zip(start, shape, strict=True)))
    region = segmenter.region(window, image)
    (y, x), (height, width) = region.start[-2:], region.shape[-2:]
    disks = bench_images.truth((y, x), (height, width)) > 0
    plane = np.where(disks, 1000, 100).astype(np.uint16)
    pixels = np.broadcast_to(plane, region.shape).copy()
    if len(shape) == 3:
        pixels[::12] = 100  # one layer of objects above the other
    return np.asarray(segmenter.at(Place("disks", 0, image, region, window))(pixels))


class Peak(Sampler):
    """The most resident memory of this process beyond that at the start."""

    period = 0.002

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._process = psutil.Process()
        self._before = self._process.memory_info().rss

    def look(self) -> None:
        """Keep the highest."""
        self.bytes = max(self.bytes, self._process.memory_info().rss - self._before)


if __name__ == "__main__":
    main()
