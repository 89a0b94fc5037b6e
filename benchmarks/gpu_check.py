"""Cellpose's fast path on an NVIDIA GPU: is it right, is it the same twice, where does time go.

    python benchmarks/gpu_check.py OUT.json [--image MOSAIC.zarr] [--only CHECK ...] [--side 2048]

Needs torch, triton, cellpose 4.2 and pydantic; neither Prefect nor an installed cytopave. Each
check is written to OUT.json as soon as it is done, so that a time limit loses only the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib.metadata
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import unpacked  # noqa: F401 - before cytopave

# isort: split

import numpy as np
import oracle
import torch

from cytopave.engine.boxes import Box
from cytopave.engine.cellpose_fast import dynamics, flow_error
from cytopave.engine.cellpose_fast import network as networks
from cytopave.engine.cellpose_fast.evaluate import Evaluator, Recipe
from cytopave.engine.cellpose_fast.objects import Objects
from cytopave.engine.segmenters.cellpose_placed import region
from cytopave.engine.segmenters.place import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RECIPE = Recipe(1.0, oracle.RANGE, 0.4, 0.0, 15, 200)
TERAFLOP = 0.727
"""Arithmetic of a patch in ViT-L, by torch's flop counter."""


def main() -> None:
    """Run the checks that were asked for."""
    options = _options()
    found: dict[str, Any] = {"when": time.strftime("%Y-%m-%d %H:%M:%S"), "versions": versions()}
    print(json.dumps(found), flush=True)
    checks = [kernels, attention, parity, eager, tiles, profile, invariance, compiled]
    for check in checks:
        if options.only and check.__name__ not in options.only:
            continue
        since = time.perf_counter()
        try:
            found[check.__name__] = check(options)
        except Exception as error:  # noqa: BLE001 - the next check may still tell something
            found[check.__name__] = {"error": f"{type(error).__name__}: {error}"}
        _empty()
        found[check.__name__]["wall_s"] = round(time.perf_counter() - since, 1)
        text = json.dumps(found[check.__name__], indent=None, default=str)
        print(f"{check.__name__}: {text}", flush=True)
        Path(options.out).write_text(json.dumps(found, indent=1, default=str))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--image", help="zarr array or OME-Zarr with nuclei, for `invariance`")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--side", type=int, default=2048, help="core of a tile")
    parser.add_argument("--batches", type=int, nargs="*", default=[8, 16, 32, 64])
    parser.add_argument("--compile-batches", type=int, nargs="*", default=[32])
    return parser.parse_args()


def versions() -> dict[str, str]:
    """Of everything whose version matters to the figures."""
    names = ("torch", "triton", "cellpose", "segment_anything", "numpy")
    found = {name: importlib.metadata.version(name) for name in names}
    if GPU.type == "cuda":
        found["card"] = torch.cuda.get_device_name(0)
        found["cudnn"] = str(torch.backends.cudnn.version())
    return found


def kernels(_: argparse.Namespace) -> dict[str, Any]:
    """Triton on the card against torch on the CPU: the same bits, for flows as noisy as can be."""
    from cytopave.engine.cellpose_fast import kernels as own

    labels = oracle.cells(512, diameter=24, seed=1)
    labels[40:300, 10:24] = labels.max() + 1  # long and thin, with a hole, and large
    labels[100:103, 15:18] = 0
    shape = labels.shape
    pixels = torch.from_numpy(labels).flatten().nonzero().squeeze(1)
    ids = torch.from_numpy(labels).flatten()[pixels].long().unique(return_inverse=True)[1]
    random = torch.Generator().manual_seed(0)
    flows = torch.randn((2, *shape), generator=random)
    start = torch.stack([pixels // shape[1], pixels % shape[1]])
    cpu = dynamics._displace(flows, start, 200)
    gpu = own.displace(flows.to(GPU), start.to(GPU), 200).cpu()
    objects = Objects.of(pixels, ids, int(ids.max()) + 1, shape)
    there = Objects.of(pixels.to(GPU), ids.to(GPU), int(ids.max()) + 1, shape)
    errors = flow_error.flow_errors(flows, objects), flow_error.flow_errors(flows.to(GPU), there)
    heat = flow_error._heat(objects), flow_error._heat(there).cpu()
    return {
        "pixels": len(pixels),
        "euler_identical": torch.equal(cpu, gpu),
        "euler_largest_difference": float((cpu - gpu).abs().max()),
        "heat_identical": torch.equal(*heat),
        "heat_largest_difference": float((heat[0] - heat[1]).abs().max()),
        "errors_largest_difference": float((errors[0] - errors[1].cpu()).abs().max()),
    }


def attention(_: argparse.Namespace) -> dict[str, Any]:
    """Error of folded attention, by kernel, beside stock's own error in bfloat16."""
    with _exact_matmul():
        x = torch.randn((2, 3, 256, 256), generator=torch.Generator().manual_seed(0)).to(GPU)
        plain = oracle.vit_l(torch.float32, GPU)
        with torch.no_grad():
            truth = plain(x)[0]
        found: dict[str, Any] = {}
        for name, fused in (("fold", False), ("fused", True)):
            net = networks.Network(oracle.vit_l(torch.float32, GPU), batch=2, fused=fused)
            found[f"float32 {name}"] = _error(net(x), truth)
        half = oracle.vit_l(torch.bfloat16, GPU)
        with torch.no_grad():
            found["bfloat16 stock"] = _error(half(x.bfloat16())[0], truth)
        net = networks.Network(half, batch=2, fused=False)
        found["chosen"] = str(net.kernel)
        for kernel in networks.CUDA_KERNELS:
            net.use(kernel)
            with contextlib.suppress(RuntimeError):
                found[f"bfloat16 fold {kernel.backend.name}"] = _error(net(x), truth)
        net = networks.Network(oracle.vit_l(torch.bfloat16, GPU), batch=2)
        found["is fused"] = net.fused
        found["bfloat16 fused"] = _error(net(x), truth)
    return found


def parity(options: argparse.Namespace) -> dict[str, Any]:
    """Our labels of one undivided image, stock's `eval` of it, and the truth."""
    from cellpose import metrics

    labels, image = _world(options.side)
    ours = Evaluator(_oracle(32))
    place = _place(Box.of(labels.shape), labels.shape)
    mine = [ours(image, place, RECIPE), Evaluator(ours.network)(image, place, RECIPE)]
    flows = ours.maps(image, place, RECIPE)
    model = oracle.stock(oracle.asking(oracle.vit_l(torch.bfloat16, GPU)))
    for _ in range(2):
        since = time.perf_counter()
        stock, (_, *answer), _ = model.eval(
            image.astype(np.float32),
            **{"channel_axis": 0, "normalize": False, "batch_size": 64, "max_size_fraction": 1.0},
        )
        seconds = time.perf_counter() - since
    theirs = np.concatenate([answer[0], answer[1][None]])
    found: dict[str, Any] = {
        "same_twice": bool(np.array_equal(mine[0], mine[1])),
        "stock_s": seconds,
        "flows_largest_difference": float(np.abs(flows.cpu().numpy() - theirs).max()),
    }
    pairs = {"stock, ours": (stock, mine[0]), "truth, ours": (labels, mine[0])}
    for name, (a, b) in (pairs | {"truth, stock": (labels, stock)}).items():
        a, b = a.astype(np.int32), b.astype(np.int32)
        ap = metrics.average_precision(a, b, threshold=[0.5, 0.75, 0.9, 0.95])[0]
        found[name] = {"ap": [round(float(p), 5) for p in ap], "n": [int(a.max()), int(b.max())]}
    return found


def eager(options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds a patch and peak memory of the network, by batch; stock's beside it."""
    found: dict[str, Any] = {
        f"folded, batch {n}": _per_patch(_oracle(n), n) for n in options.batches
    }
    _empty()
    net = oracle.asking(oracle.vit_l(torch.bfloat16, GPU))

    def plain(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return net(x)[0]

    found["stock, batch 8"] = _per_patch(plain, 8)
    found["limit_ms"] = _limit()
    return found


def compiled(options: argparse.Namespace) -> dict[str, Any]:
    """The same with `torch.compile`, and then the stages of a tile."""
    found: dict[str, Any] = {}
    for batch in options.compile_batches:
        since = time.perf_counter()
        net = _oracle(batch, compiled=True)
        net(torch.zeros((batch, 3, 256, 256), device=GPU))
        _wait()
        first = time.perf_counter() - since
        found[f"batch {batch}"] = _per_patch(net, batch) | {"first_call_s": round(first, 1)}
        if batch == options.compile_batches[0]:
            found["tile"] = _stages(net, options.side)
    return found


def tiles(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds a stage of a tile within a larger image, eager; the patches that neighbours share."""
    return {f"batch {n}": _stages(_oracle(n), options.side) for n in (32, 16)}


def profile(options: argparse.Namespace) -> dict[str, Any]:
    """Where the network's time goes, by kernel."""
    from torch.profiler import ProfilerActivity, profile

    net = _oracle(32)
    x = torch.randn((32, 3, 256, 256), device=GPU)
    net(x)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        net(x)
        _wait()
    rows = sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in rows) / 1e3
    found: dict[str, Any] = {"total_ms": round(total, 2), "patches": len(x)}
    for number, e in enumerate(rows[:16]):
        found[f"{number} {e.key[:150]}"] = [e.count, round(e.self_device_time_total / 1e3, 2)]
    return found


def invariance(options: argparse.Namespace) -> dict[str, Any]:
    """The small network on the card: labels of tiles against labels of the undivided image."""
    from cytopave.engine.segmenters import cellpose_placed, cellpose_weights

    path = cellpose_weights.find("nuclei-tiny")
    network = cellpose_weights.inspect(path)
    image, intensity = _nuclei(options.image)
    found: dict[str, Any] = {"shape": image.shape}
    for half in (False, True):
        recipe = Recipe(1.0, (intensity,), 0.4, 0.0, 15, 200)
        evaluator = cellpose_placed.build(path, network, device=GPU.type, bfloat16=half, batch=16)
        whole = evaluator(image[None], _place(Box.of(image.shape), image.shape), recipe)
        for tile in (256, 384, 512):
            parts = Evaluator(evaluator.network)
            windows = [
                core.grow((64, 64)).intersect(Box.of(image.shape))
                for core in Box.of(image.shape).blocks((tile, tile))
            ]
            same = [_agree(parts, image, w, whole, recipe) for w in windows]
            name = f"{'bfloat16' if half else 'float32'}, tile {tile}"
            found[name] = {
                "objects": sum(n for n, _ in same),
                "identical": sum(k for _, k in same),
                "evaluated": parts.evaluated,
                "reused": parts.reused,
            }
    return found


def _agree(
    parts: Evaluator, image: np.ndarray, window: Box, whole: np.ndarray, recipe: Recipe
) -> tuple[int, int]:
    """Objects that lie wholly in a window, and how many of them it found pixel for pixel."""
    place = _place(window, image.shape)
    got = parts(image[None][:, *place.region.slices], place, recipe)
    want = whole[window.slices]
    edge = np.zeros(want.shape, bool)
    for axis in (0, 1):
        for end, at, border in ((0, window.start, 0), (-1, window.stop, image.shape[axis])):
            if at[axis] != border:
                edge[(slice(None),) * axis + (end,)] = True
    ids = np.setdiff1d(np.unique(want), np.append(np.unique(want[edge]), 0))
    same = 0
    for number in ids:
        own = want == number
        there = np.unique(got[own])
        same += int(len(there) == 1 and there[0] > 0 and (got == there[0]).sum() == own.sum())
    return len(ids), same


def _stages(net: networks.Network, side: int, *, repeats: int = 4) -> dict[str, Any]:
    """Seconds a stage of inner tiles of ``side``, halo 64, in an image that is 3 tiles wide."""
    stages: dict[str, float] = {}
    last = [0.0]

    def mark(stage: str) -> None:
        _wait()
        now = time.perf_counter()
        stages[stage] = stages.get(stage, 0.0) + now - last[0]
        last[0] = now

    shape = (3 * side, 3 * side)
    window = Box((side, side), (2 * side, 2 * side)).grow((64, 64))
    place = _place(window, shape)
    _, image = _world(place.region.shape[0])
    evaluator = Evaluator(net, mark=mark, keep_bytes=0)
    evaluator(image, place, RECIPE)
    stages.clear()
    if GPU.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    done = evaluator.evaluated
    begun = last[0] = time.perf_counter()
    for _ in range(repeats):
        found = evaluator(image, place, RECIPE)
    seconds = (time.perf_counter() - begun) / repeats
    patches = (evaluator.evaluated - done) // repeats
    peak = torch.cuda.max_memory_allocated() / 2**30 if GPU.type == "cuda" else 0
    return {
        "tile_s": round(seconds, 4),
        "stages_s": {k: round(v / repeats, 4) for k, v in stages.items()},
        "patches": patches,
        "of_limit": round(patches * _limit() / 1e3 / seconds, 3),
        "objects": int(found.max()),
        "peak_gib": round(peak, 2),
        "region": place.region.shape,
        "sharing": _sharing(side),
    }


def _sharing(side: int) -> dict[str, float]:
    """Patches that 4 x 4 tiles ask for, alone and with neighbours' kept, per patch of the image."""
    from cytopave.engine.patchwise.grid import axis

    whole = axis(4 * side)
    asked = sum(
        len(whole.span(max(0, i * side - 64), min(4 * side, (i + 1) * side + 64)).patches)
        for i in range(4)
    )
    return {"alone": round((asked / len(whole.starts)) ** 2, 3), "kept": 1.0}


def _per_patch(run: Callable[[torch.Tensor], torch.Tensor], batch: int) -> dict[str, float]:
    x = torch.randn((batch, 3, 256, 256), device=GPU).to(torch.bfloat16)
    for _ in range(2):
        run(x)
    _wait()
    if GPU.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(5):
        since = time.perf_counter()
        for _ in range(max(1, 64 // batch)):
            run(x)
        _wait()
        times.append((time.perf_counter() - since) / max(1, 64 // batch) / batch)
    ms = 1e3 * float(np.median(times))
    peak = torch.cuda.max_memory_allocated() / 2**30 if GPU.type == "cuda" else 0
    return {"ms": round(ms, 3), "of_limit": round(_limit() / ms, 3), "peak_gib": round(peak, 2)}


@functools.cache
def _limit() -> float:
    """Milliseconds that a patch's arithmetic takes at the rate of an 8192^3 product."""
    side = 8192 if GPU.type == "cuda" else 256
    a, b = (torch.randn((side, side), device=GPU, dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(12):
        _wait()
        since = time.perf_counter()
        a @ b
        _wait()
        times.append(time.perf_counter() - since)
    return TERAFLOP * 1e12 / (2 * side**3 / float(np.median(times))) * 1e3


def _oracle(batch: int, *, fused: bool = True, compiled: bool = False) -> networks.Network:
    _empty()
    net = oracle.asking(oracle.vit_l(torch.bfloat16, GPU))
    return networks.Network(net, batch=batch, fused=fused, compiled=compiled)


@functools.cache
def _world(side: int) -> tuple[np.ndarray, np.ndarray]:
    labels = oracle.cells(side)
    return labels, oracle.answers(labels, GPU)


def _nuclei(path: str | None) -> tuple[np.ndarray, tuple[float, float]]:
    """At most 1536 x 1536 pixels with nuclei, and what becomes 0 and 1."""
    if path is None:
        from scipy import ndimage

        random = np.random.default_rng(0)
        image = ndimage.gaussian_filter((oracle.cells(1280, seed=2) > 0) * 1.0, 3)
        image = (8000 * image + random.normal(500, 200, image.shape)).clip(0).astype(np.uint16)
    else:
        from cytopave.engine.omezarr.image import open_image

        source = open_image(path)
        box = Box.of(tuple(min(n, 1536) for n in source.spatial_shape))
        image = np.squeeze(source.read(box, time=0, channels=(0,) if source.n_channels else ()))
    low, high = np.percentile(image, (1, 99))
    return image, (float(low), float(high))


def _place(window: Box, shape: tuple[int, ...]) -> Place:
    return Place("check", 0, shape, region(window, shape, rescale=1.0), window)


def _error(got: torch.Tensor, truth: torch.Tensor) -> float:
    return float((got.float() - truth).norm() / truth.norm())


@contextlib.contextmanager
def _exact_matmul() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _wait() -> None:
    if GPU.type == "cuda":
        torch.cuda.synchronize()


def _empty() -> None:
    gc.collect()
    if GPU.type == "cuda":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
