"""Where a tile's time goes on an NVIDIA GPU beside the network, on Cellpose's fast path.

    python benchmarks/gpu_tile.py OUT.json [--side 2048] [--only PART ...]

Needs torch, triton, cellpose 4.2 and pydantic; less than a minute on an H200. The network is the
oracle of ``oracle.py`` at its real cost. Parts: ``stages`` of one tile, each waited for;
``kernels`` beside what they replace, and by group size; ``loop`` over six tiles as a worker runs
it, with the number of batches that the network was given; ``profile``, the 25 kernels that take
most of it.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import unpacked  # noqa: F401 - before cytopave

# isort: split

import numpy as np
import oracle
import torch
from gpu_check import GPU, RECIPE, _empty, _oracle, _stages, _wait, versions

from cytopave.engine.boxes import Box
from cytopave.engine.cellpose_fast import flow_error
from cytopave.engine.cellpose_fast import network as networks
from cytopave.engine.cellpose_fast.evaluate import Evaluator
from cytopave.engine.cellpose_fast.objects import Objects
from cytopave.engine.patchwise import average
from cytopave.engine.patchwise.grid import axis, taper
from cytopave.engine.patchwise.streams import pinned
from cytopave.engine.pipeline import Pipeline
from cytopave.engine.segmenters.cellpose_placed import region
from cytopave.engine.segmenters.place import Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from cytopave.engine.patchwise.evaluator import Begun, Labelled

ROWS, COLUMNS = 2, 3


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--side", type=int, default=2048, help="core of a tile")
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    found: dict[str, Any] = {"versions": versions()}
    network = _oracle(options.batch)
    for part in (stages, kernels, loop, profile):
        if options.only and part.__name__ not in options.only:
            continue
        found[part.__name__] = part(network, options.side)
        _empty()
        print(f"{part.__name__}: {json.dumps(found[part.__name__])}", flush=True)
        Path(options.out).write_text(json.dumps(found, indent=1))


def stages(network: networks.Network, side: int) -> dict[str, Any]:
    """Seconds a stage of an inner tile, one after the other."""
    return _stages(network, side)


def kernels(network: networks.Network, side: int) -> dict[str, Any]:
    """Milliseconds of the average and of the flow check of a tile: torch's, and the kernels'."""
    from cytopave.engine.cellpose_fast import kernels as own
    from cytopave.engine.patchwise.kernels import add_patches

    image = torch.from_numpy(_block(side)).to(GPU)
    flows = image[:2].float() / 5
    labels = torch.from_numpy(oracle.cells(side)).to(GPU).flatten()
    pixels = labels.nonzero().squeeze(1)
    objects = Objects.of(pixels, labels[pixels].long() - 1, int(labels.max()), (side, side))
    axes = [axis(3 * side)] * 2
    spans = [axes[0].span(side, 2 * side)] * 2
    maps = list(torch.randn((len(spans[0].patches) ** 2, 3, 256, 256), device=GPU).bfloat16())
    weight = torch.from_numpy(taper()).to(GPU)
    found = {
        "average, torch": _ms(lambda: average._sum(maps, weight, axes, spans)),
        "average, kernel": _ms(lambda: add_patches(torch.stack(maps), weight, axes, spans)),
        "flow check, torch": _ms(lambda: flow_error._sums(flows, objects)),
        "extents": _ms(lambda: Objects.of(pixels, objects.ids, len(objects), objects.shape)),
        "centres": _ms(objects.sources),
        "may have holes": _ms(objects.hollow),
        "label image": _ms(objects.image),
    }
    chosen = dict(own.CHECK)
    for block, warps in ((256, 2), (256, 4), (256, 8), (512, 4), (512, 8), (512, 16), (1024, 8)):
        own.CHECK.update(BLOCK=block, num_warps=warps)
        found[f"flow check, kernel, {block} by {32 * warps}"] = _ms(
            functools.partial(flow_error.flow_errors, flows, objects)
        )
    own.CHECK.update(chosen)
    return found


def loop(network: networks.Network, side: int) -> dict[str, Any]:
    """Seconds of six tiles as a worker runs them, and of as many batches of the network alone."""
    image = _image(side)
    _run(network, image, side, streaming=True)
    found: dict[str, Any] = {}
    for name, streaming in (("streaming", True), ("one at a time", False)):
        given = [0]
        handle = network.net.register_forward_hook(lambda *_: given.__setitem__(0, given[0] + 1))  # noqa: B023
        _wait()
        since = time.perf_counter()
        digest = _run(network, image, side, streaming=streaming)
        seconds = time.perf_counter() - since
        handle.remove()
        found[name] = {"s": round(seconds, 4), "batches": given[0], "labels": digest}
    patches = torch.zeros((network.batch, 3, 256, 256), device=GPU)
    alone = _ms(lambda: network(patches))
    found["a batch of the network alone, ms"] = alone
    for one in found.values():
        if isinstance(one, dict):
            one["ms beside the network, a tile"] = round(
                (1e3 * one["s"] - one["batches"] * alone) / (ROWS * COLUMNS), 2
            )
    return found


def profile(network: networks.Network, side: int) -> dict[str, Any]:
    """The kernels that take most of the streaming loop: number and milliseconds."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    image = _image(side)
    _run(network, image, side, streaming=True)
    with profiled(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        _run(network, image, side, streaming=True)
        _wait()
    rows = sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)
    rows = [e for e in rows if e.self_device_time_total and not e.key.startswith("aten::")]
    found = {"all, ms": round(sum(e.self_device_time_total for e in rows) / 1e3, 2)}
    for number, e in enumerate(rows[:25]):
        found[f"{number:2} {e.key[:110]}"] = (e.count, round(e.self_device_time_total / 1e3, 2))
    return found


def _run(network: networks.Network, image: np.ndarray, side: int, *, streaming: bool) -> str:
    """Segment all tiles of an image; returns a digest of their labels."""
    evaluator = Evaluator(network)
    shape = (image.shape[1], image.shape[2])
    windows = [
        core.grow((64, 64)).intersect(Box.of(shape)) for core in Box.of(shape).blocks((side, side))
    ]
    places = [Place("tiles", 0, shape, region(w, shape, rescale=1.0), w) for w in windows]

    def read(place: Place) -> Any:
        pixels = np.ascontiguousarray(image[:, *place.region.slices])
        return pinned(pixels) if GPU.type == "cuda" else pixels

    def begin(place: Place, pixels: Any) -> Begun:
        return evaluator.begin(pixels, place, RECIPE)

    def settle(_: Place, begun: Begun) -> Labelled:
        return begun.settle()

    def finish(_: Place, found: Labelled) -> str:
        return hashlib.sha256(found.finish().tobytes()).hexdigest()

    stages = Pipeline(read=read, begin=begin, settle=settle, finish=finish)
    if not streaming:
        stages = Pipeline(
            read=read, begin=lambda p, x: settle(p, begin(p, x)), finish=finish, bound=1
        )
    digests = {o.item.window.start: o.result for o in stages.run(places)}
    return hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()[:12]


@functools.cache
def _block(side: int) -> np.ndarray:
    return oracle.answers(oracle.cells(side), GPU)


def _image(side: int) -> np.ndarray:
    """As many blocks of cells as there are tiles; none crosses a seam."""
    return np.tile(_block(side), (1, ROWS, COLUMNS))


def _ms(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(6):
        _wait()
        since = time.perf_counter()
        run()
        _wait()
        times.append(time.perf_counter() - since)
    return round(1e3 * float(np.median(times[1:])), 3)


if __name__ == "__main__":
    main()
