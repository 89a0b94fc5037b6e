"""A torch network of one's own: patch by patch on our machinery, and as a function of whole tiles.

    python benchmarks/gpu_torch.py FOLDER OUT.json [--side 8192] [--tile 2048]

The same U-Net (random weights, 16 bits) and the same function that makes labels of its maps, over
all tiles of one image, as `TorchNetwork` and as `Custom`. The maps tell the image's known objects,
so that what either finds can be counted. Prints JSON and writes it to OUT.json; runs on a CPU too,
for a look (--side 1024 --tile 512).
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import unpacked  # noqa: F401 - before cytopave

# isort: split

import bench_images
import cc3d
import numpy as np
import torch
from gpu_segment_parts import _busy
from torch import nn
from torch.nn import functional as F

from cytopave.engine.merge import Merge, stages
from cytopave.engine.planning.budget import local_budget
from cytopave.engine.planning.planner import make_plan
from cytopave.engine.segment import segment_tiles
from cytopave.engine.segmenters import Custom, TorchNetwork
from cytopave.engine.tiling import Tiling

if TYPE_CHECKING:
    from cytopave.engine.planning.plan import Plan
    from cytopave.engine.segmenters import Segmenter

RANGE = (0.0, 1000.0)
HALO = 64
ABOVE = bench_images.THRESHOLD / RANGE[1]
WIDTHS = (32, 64, 128, 256)


class UNet(nn.Module):  # type: ignore[misc]
    """Four levels of two convolutions; answers with what it is shown and a trace of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.down = nn.ModuleList(_twice(a, b) for a, b in zip((1, *WIDTHS), WIDTHS, strict=False))
        pairs = zip(WIDTHS[::-1], WIDTHS[-2::-1], strict=False)
        self.up = nn.ModuleList(_twice(a + b, b) for a, b in pairs)
        self.last = nn.Conv2d(WIDTHS[0], 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps ``(n, 1, Y, X)`` of images ``(n, 1, Y, X)``, of multiples of 8 pixels a side."""
        seen, kept = x.to(self.last.weight.dtype), list[torch.Tensor]()
        for level in self.down:
            seen = level(seen if not kept else F.max_pool2d(seen, 2))
            kept.append(seen)
        for level, beside in zip(self.up, kept[-2::-1], strict=True):
            seen = level(torch.cat([F.interpolate(seen, scale_factor=2), beside], 1))
        return x + 1e-6 * self.last(seen).float()


def _twice(a: int, b: int) -> nn.Sequential:
    layers = [nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers)


def build(device: torch.device) -> UNet:
    """The network on its device, in 16 bits on a GPU."""
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    network: UNet = UNet().eval().to(device, kind, memory_format=torch.channels_last)
    return network


def labels(maps: torch.Tensor) -> np.ndarray:
    """Connected parts above a threshold: only one bit a pixel leaves the device."""
    return np.asarray(cc3d.connected_components((maps[0] > ABOVE).cpu().numpy(), connectivity=4))


_built: list[UNet] = []


def of_tile(tile: np.ndarray) -> np.ndarray:
    """The same network and function, of a whole tile: what a user would write first."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not _built:
        _built.append(build(device))
    low, high = RANGE
    pixels = torch.from_numpy(tile.astype(np.float32)).to(device).sub_(low).div_(high - low)
    height, width = tile.shape
    padded = F.pad(pixels, (0, -width % 8, 0, -height % 8))[None, None]
    with torch.no_grad():
        return labels(_built[0](padded)[0, :, :height, :width])


def main() -> None:
    """Run both, twice each: the first time warms up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--side", type=int, default=8192)
    parser.add_argument("--tile", type=int, default=2048)
    options = parser.parse_args()
    image = options.folder / f"discs-{options.side}.zarr"
    options.folder.mkdir(parents=True, exist_ok=True)
    bench_images.write_image(image, options.side, options.tile // 2)
    methods: dict[str, Segmenter] = {
        "TorchNetwork": TorchNetwork(
            network="gpu_torch:build", labels="gpu_torch:labels", intensity=(RANGE,), maps=1
        ),
        "Custom": Custom(function="gpu_torch:of_tile", gpu=torch.cuda.is_available()),
    }
    found: dict[str, Any] = {
        "when": time.strftime("%Y-%m-%d %H:%M"),
        "torch": torch.__version__,
        "card": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
        "objects": bench_images.n_objects(options.side),
    }
    for name, method in methods.items():
        scratch = options.folder / "scratch"
        runs = [run(image, method, scratch, options.tile, number=n) for n in range(3)]
        found[name] = min(runs[1:], key=lambda facts: float(facts["seconds"]))
        print(name, json.dumps(found[name]), flush=True)
        options.out.write_text(json.dumps(found, indent=1))


def run(image: Path, method: Segmenter, scratch: Path, tile: int, *, number: int) -> dict[str, Any]:
    """Segment all tiles in this process; seconds, objects after the merge, how busy the GPU was."""
    shutil.rmtree(scratch, ignore_errors=True)
    plan = make_plan(
        str(image),
        segmenter=method,
        tiling=Tiling(tile=(tile, tile), halo=HALO),
        merge=Merge(),
        budget=local_budget(method, workers=1),
        workers=1,
        batch_seconds=1e6,
        name="cells",
        output=str(scratch / "labels.zarr"),
        scratch=scratch,
    )
    # Another name for the image, so that no patch of an earlier run is taken from the cache.
    plan = plan.model_copy(update={"digest": f"{number}"})
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with _busy() as busy:
        since = time.perf_counter()
        work = segment_tiles(plan, tuple(range(len(plan.grid))))
        seconds = time.perf_counter() - since
    return {
        "seconds": round(seconds, 3),
        "stages_s": {k: round(v, 3) for k, v in work.seconds.items()},
        "objects": _merged(plan),
        "gpu_busy": round(float(np.mean(busy)), 2) if busy else None,
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }


def _merged(plan: Plan) -> int:
    everything = tuple(range(len(plan.grid)))
    stages.scan_tiles(plan, everything)
    return stages.resolve_run(plan, [everything]).n_objects


if __name__ == "__main__":
    main()
