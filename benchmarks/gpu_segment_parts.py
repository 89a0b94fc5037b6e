"""The parts of gpu_segment.py, each of which is a process: prints one line of JSON."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import unpacked  # noqa: F401 - before cytopave

# isort: split

import numpy as np
import oracle
import oracle_world

_BEGUN = time.perf_counter()

if TYPE_CHECKING:
    from collections.abc import Iterator


def world(folder: Path, side: str, tile: str, halo: str, *flags: str) -> dict[str, Any]:
    """The image, its known cells, the weights; and versions."""
    import importlib.metadata as metadata

    import torch

    facts = oracle_world.make(folder, side=int(side), tile=int(tile), small="--small" in flags)
    names = ("torch", "cellpose", "prefect", "dask", "zarr", "numpy")
    versions = {name: metadata.version(name) for name in names}
    card = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    return {**facts, "halo": int(halo), "card": card, "versions": versions}


def network(folder: Path, stock_batch: str, *batches: str) -> dict[str, Any]:
    """The network alone on as many patches as the image has; the limit of its arithmetic."""
    import torch

    from cytopave.engine.cellpose_fast.network import Network
    from cytopave.engine.patchwise.grid import axis

    facts = _facts(folder)
    patches = len(axis(facts["side"]).starts) ** 2
    net = oracle_world.stock_model(facts["network"]).net
    teraflop = _teraflop(net)
    rate = _product_rate()

    def stock(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return net(x.to(net.dtype))[0]

    n = int(stock_batch)
    seconds = {f"stock, batch {n}": _per_patch(stock, n) * patches}
    for batch in map(int, batches):
        net = oracle_world.stock_model(facts["network"]).net
        seconds[f"ours, batch {batch}"] = _per_patch(Network(net, batch=batch), batch) * patches
    return {
        "patches": patches,
        "teraflop_a_patch": teraflop,
        "teraflop_a_second": rate,
        "limit_s": patches * teraflop / rate,
        "all_s": seconds,
    }


def loop(folder: Path, tile: str, halo: str, *batches: str) -> dict[str, Any]:
    """`segment_tiles` over all tiles: streaming by patch batch, and one tile after the other."""
    results: dict[str, Any] = {}
    digests = set()
    for batch in map(int, batches):
        for in_flight in (0, 1) if batch == int(batches[0]) else (0,):
            plan, facts = _loop(folder, int(tile), int(halo), batch=batch, in_flight=in_flight)
            hand = "one tile at a time" if in_flight else "streaming"
            results[f"{hand}, batch {batch}"] = facts
            digests.add(_digest(plan))
    results["merge"] = {f"{n} threads": _merge(plan, threads=n) for n in (1, 4, 8, 16)}
    return {**results, "same_labels": len(digests) == 1}


def _merge(plan: Any, *, threads: int) -> dict[str, float]:
    """Seconds of the merge's stages, of the tiles that the loop has left."""
    from cytopave.engine.merge import stages

    everything = tuple(range(len(plan.grid)))
    shutil.rmtree(plan.merge_folder, ignore_errors=True)
    marks = [time.perf_counter()]
    stages.scan_tiles(plan, everything, threads=threads)
    marks.append(time.perf_counter())
    found = stages.resolve_run(plan, [everything])
    plan.target.staging.remove()
    plan.target.create(found.final.dtype)
    marks.append(time.perf_counter())
    stages.write_blocks(plan, tuple(plan.target.blocks()), threads=threads)
    marks.append(time.perf_counter())
    seconds = np.diff(marks).round(3).tolist()
    return dict(zip(("scan", "resolve", "write"), seconds, strict=True))


def _loop(
    folder: Path, tile: int, halo: int, *, batch: int, in_flight: int
) -> tuple[Any, dict[str, Any]]:
    from cytopave.engine.segment import segment_tiles

    scratch = folder / "loop"
    shutil.rmtree(scratch, ignore_errors=True)
    start = _plan(folder, "small-", oracle_world.SMALL // 2, halo, scratch, batch)
    segment_tiles(start, tuple(range(len(start.grid))))
    plan = _plan(folder, "", tile, halo, scratch, batch)
    # Another name for the image, so that no patch of an earlier variant is taken from the cache.
    changes = {"digest": f"{batch} {in_flight}", "in_flight": in_flight or plan.in_flight}
    plan = plan.model_copy(update=changes)
    evaluator = plan.segmenter._evaluator()
    before = evaluator.evaluated, evaluator.reused
    with _busy() as busy:
        since = time.perf_counter()
        work = segment_tiles(plan, tuple(range(len(plan.grid))))
        seconds = time.perf_counter() - since
    facts = {
        "seconds": seconds,
        "stages_s": {k: round(v, 3) for k, v in work.seconds.items()},
        "tiles_in_hand": plan.in_flight,
        "patches": evaluator.evaluated - before[0],
        "patches_shared": evaluator.reused - before[1],
        "gpu_busy": statistics.mean(busy) if busy else None,
        "gpu_busy_samples": [round(b, 2) for b in busy],
        "peak_gib": _peak(),
    }
    return plan, facts


def flow(folder: Path, name: str, tile: str, halo: str) -> dict[str, Any]:
    """`segment_image` as a user calls it: own cluster, temporary API."""
    return _flow(folder, name, tile, halo, "auto") | _found(folder, name)


def warm(folder: Path, tile: str, halo: str, repeat: str) -> dict[str, Any]:
    """The same on workers that have segmented before: medians, and those of a small image."""
    import torch
    from distributed import Client, LocalCluster

    from cytopave.tasks.runner import embedded_api

    embedded_api()
    if torch.cuda.is_available():
        from dask_cuda import LocalCUDACluster

        cluster = LocalCUDACluster(n_workers=1, dashboard_address="127.0.0.1:0")
    else:
        cluster = LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0")
    times = int(repeat)
    with cluster, Client(cluster, set_as_default=False) as client:
        address = cluster.scheduler_address

        def anew(name: str) -> dict[str, Any]:
            client.run(_forget)  # what a run takes, not what it takes the second time
            return _flow(folder, name, tile, halo, address)

        anew("small-")
        small = [anew("small-") for _ in range(times)]
        before = sum(client.run(_evaluated).values())
        with _busy() as busy:
            large = [anew("") for _ in range(times)]
        patches = sum(client.run(_evaluated).values()) - before
    return {
        **_middle(large),
        **_found(folder, ""),
        "patches_a_run": patches / times,
        "all": [facts["seconds"] for facts in large],
        "fixed": _middle(small) | {"all": [facts["seconds"] for facts in small]},
        "gpu_busy": statistics.mean(busy) if busy else None,
    }


def _evaluated() -> int:
    """Patches that this process's network has evaluated: none may come from an earlier run."""
    from cytopave.engine.segmenters import cellpose

    held = cellpose._evaluators._held
    return held[1].evaluated if held else 0


def _forget() -> None:
    """Drop the patches that this process keeps for a neighbouring tile; the network stays."""
    from cytopave.engine.segmenters import cellpose

    if held := cellpose._evaluators._held:
        held[1]._kept.clear()


def _middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run of median seconds."""
    return sorted(runs, key=lambda facts: facts["seconds"])[len(runs) // 2]


def _flow(folder: Path, name: str, tile: str, halo: str, cluster: str) -> dict[str, Any]:
    from cytopave.engine.tiling import Tiling
    from cytopave.flows import segment_image

    facts = _facts(folder)
    side = int(tile) if not name else oracle_world.SMALL // 2
    since = time.perf_counter()
    report = segment_image(
        str(folder / f"{name}image.zarr"),
        segmenter=_segmenter(facts["network"]),
        output=str(folder / f"{name}labels.zarr"),
        tiling=Tiling(tile=(side, side), halo=int(halo)),
        overwrite=True,
        cluster=cluster,
        workers=1,
        measure=False,  # labels alone, which is what the others make
    )
    seconds, seconds_in_all = time.perf_counter() - since, time.perf_counter() - _BEGUN
    return {
        "seconds": seconds,
        "stages_s": {s.name: round(s.seconds, 3) for s in report.stages},
        "process_s": seconds_in_all,
    }


def _found(folder: Path, name: str) -> dict[str, int]:
    """`counted` of what the flow has published."""
    from cytopave.engine.omezarr.labels import open_labels

    labels = open_labels(str(folder / f"{name}labels.zarr"), "cells").levels[0]
    return counted(folder, np.asarray(labels[...]), name)


def stock(folder: Path, tile: str, halo: str, batch: str) -> dict[str, Any]:
    """Cellpose's own `eval` of each tile, one after the other; nothing is merged."""
    import zarr

    from cytopave.engine.tiling import Grid

    facts = _facts(folder)
    model = oracle_world.stock_model(facts["network"])
    image = zarr.open_array(str(folder / "packed.zarr"), mode="r")
    small = np.asarray(zarr.open_array(str(folder / "small-packed.zarr"), mode="r")[...])
    oracle_world.stock_labels(model, small, int(batch))
    grid = Grid(image.shape, (int(tile),) * 2, (int(halo),) * 2)
    since = time.perf_counter()
    found = [
        oracle_world.stock_labels(model, np.asarray(image[t.window.slices]), int(batch))
        for t in grid
    ]
    seconds = time.perf_counter() - since
    # Counted as if merged: of each tile, the cells whose first pixel lies in its core.
    merged = np.zeros(image.shape, np.int32)
    count = 0
    for part, labels in zip(grid, found, strict=True):
        shown = _owned(labels, part)
        view = merged[part.window.slices]
        view[shown > 0] = shown[shown > 0] + count
        count += int(labels.max())
    return {"seconds": seconds, **counted(folder, merged)}


def _owned(labels: np.ndarray, tile: Any) -> np.ndarray:
    """The labels whose first pixel is in the tile's core, the others as background."""
    ids, first = np.unique(labels, return_index=True)
    places = np.unravel_index(first, labels.shape)
    inside = np.ones(len(ids), bool)
    for place, start, a, b in zip(
        places, tile.window.start, tile.core.start, tile.core.stop, strict=True
    ):
        inside &= (a <= place + start) & (place + start < b)
    kept = np.zeros(int(ids.max()) + 1, labels.dtype)
    kept[ids[inside & (ids > 0)]] = ids[inside & (ids > 0)]
    return np.asarray(kept[labels])


def counted(folder: Path, labels: np.ndarray, name: str = "") -> dict[str, int]:
    """How many known cells were found (IoU 0.5), and how many labels there are."""
    from cytopave.engine.score import match

    matches = match(np.load(folder / f"{name}truth.npy"), labels)
    return {"found": matches.matched, "labels": matches.matched + matches.spurious}


def _facts(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "world.json").read_text()))


def _segmenter(network: str, batch: int | None = None) -> Any:
    from cytopave.engine.segmenters import Cellpose

    return Cellpose(model=network, intensity=oracle.RANGE, batch_size=batch)


def _plan(folder: Path, name: str, tile: int, halo: int, scratch: Path, batch: int) -> Any:
    from cytopave.engine.merge import Merge
    from cytopave.engine.planning.budget import local_budget
    from cytopave.engine.planning.planner import make_plan
    from cytopave.engine.tiling import Tiling

    segmenter = _segmenter(_facts(folder)["network"], batch)
    return make_plan(
        str(folder / f"{name}image.zarr"),
        segmenter=segmenter,
        tiling=Tiling(tile=(tile, tile), halo=halo),
        merge=Merge(),
        budget=local_budget(segmenter, workers=1),
        workers=1,
        batch_seconds=1e6,
        name="cells",
        output=str(scratch / f"{name}labels.zarr"),
        scratch=scratch,
    )


def _digest(plan: Any) -> str:
    import hashlib

    digest = hashlib.sha256()
    for index in sorted(plan.scratch.finished()):
        archive = plan.scratch.open(index)
        for array in archive.read(*archive.index):
            digest.update(array.tobytes())
    return digest.hexdigest()


@contextmanager
def _busy(period: float = 0.05) -> Iterator[list[float]]:
    """NVML's utilisation of the first card, sampled while the block runs."""
    import pynvml

    samples: list[float] = []
    over = threading.Event()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield samples
        return
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def sample() -> None:
        while not over.wait(period):
            samples.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def _peak() -> float:
    import torch

    return round(torch.cuda.max_memory_allocated() / 2**30, 2) if torch.cuda.is_available() else 0.0


def _teraflop(net: Any) -> float:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        net(torch.zeros((1, 3, 256, 256), dtype=net.dtype, device=net.device))
    return float(counter.get_total_flops()) / 1e12


def _product_rate() -> float:
    """10^12 operations a second of an 8192^3 bf16 product of random numbers, the median of 12."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    side = 8192 if device.type == "cuda" else 256
    a, b = (torch.randn((side, side), device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * side**3 / 1e12 / _median(lambda: a @ b, 12)


def _per_patch(run: Any, batch: int) -> float:
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn((batch, 3, 256, 256), device=device).to(torch.bfloat16)
    return _median(lambda: run(x), 8 if device.type == "cuda" else 1) / batch


def _median(call: Any, times: int) -> float:
    import torch

    seconds = []
    for _ in range(times + 2):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        since = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - since)
    return statistics.median(seconds[2:])


PARTS = (world, network, loop, flow, warm, stock)


def main() -> None:
    """Run one part: ``gpu_segment_parts.py FOLDER PART ARGUMENTS...``."""
    part = {p.__name__: p for p in PARTS}[sys.argv[2]]
    print(json.dumps(part(Path(sys.argv[1]), *sys.argv[3:])))


if __name__ == "__main__":
    main()
