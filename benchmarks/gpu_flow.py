"""The whole flow on a machine with NVIDIA GPUs: what the card is needed to show, in one run.

    python benchmarks/gpu_flow.py IMAGE.zarr OUT.json [--device cpu]

Checks, each with its time: the probe against torch; a run on LocalCUDACluster workers, whose labels
must be the same twice; the same run while another process holds nearly all of the card's memory
for a while (the run must back off, hold little meanwhile, and end with the same labels); tiles that
can never fit, by the plan and by a card that stays full (both must be told with the figures); the
device named by index and by UUID. Prints JSON and writes it to OUT.json. ``--device cpu`` is for a
look at whether it runs: what needs a card is an error then.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import unpacked  # noqa: F401 - before cytopave

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GIB = 2**30
DEVICE = "cuda"
BOUND = 150.0
"""Seconds that a tenant stays at most, and waits for a plan: whatever fails, the rest goes on."""


def main() -> None:
    """Run all checks."""
    global DEVICE
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("image")
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default=DEVICE)
    options = parser.parse_args()
    DEVICE = options.device
    found: dict[str, Any] = {"when": time.strftime("%Y-%m-%d %H:%M:%S")}
    for check in (versions, probe, runs, shared_card, never_fits, named_devices):
        since = time.perf_counter()
        try:
            found[check.__name__] = check(options.image)
        except Exception as error:  # noqa: BLE001 - the next check may still tell something
            found[check.__name__] = {"error": f"{type(error).__name__}: {error}"}
        found[check.__name__]["wall_s"] = round(time.perf_counter() - since, 1)
        print(check.__name__, json.dumps(found[check.__name__], indent=1), flush=True)
        options.out.write_text(json.dumps(found, indent=1))


def elsewhere(function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Call it in another process: this one, which runs flows, shall have no CUDA context."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function).result()


def versions(_: str) -> dict[str, Any]:
    """Of everything whose version matters to the figures."""
    return elsewhere(_versions)


def _versions() -> dict[str, Any]:
    import importlib.metadata as metadata

    import torch

    names = ("torch", "cellpose", "prefect", "dask", "dask-cuda", "zarr", "numpy")
    return {n: metadata.version(n) for n in names} | {"card": torch.cuda.get_device_name(0)}


def probe(_: str) -> dict[str, Any]:
    """NVML's figures beside torch's."""
    return elsewhere(_probe)


def _probe() -> dict[str, Any]:
    import torch

    from cytopave.engine.gpu.vram import probe_gpu

    gpu = probe_gpu()
    free, total = torch.cuda.mem_get_info()
    assert gpu.visible
    assert abs(gpu.total_bytes - total) < 2 * GIB
    return {"note": gpu.note, "nvml_free_gib": gpu.free_bytes / GIB, "torch_free_gib": free / GIB}


def runs(image: str) -> dict[str, Any]:
    """Two undisturbed runs: the same labels, bit for bit."""
    first, second = segment(image, "first"), segment(image, "second")
    assert first["labels"] == second["labels"]
    return {"first": first, "second": second}


def shared_card(image: str) -> dict[str, Any]:
    """Another process holds the card's memory for the first part of the run."""
    os.environ["CYTOPAVE_BACKOFF_SECONDS"] = "5"
    low: list[float] = []
    with tenant(image) as (holding, release):
        threading.Thread(target=watch, args=(holding, release, low), daemon=True).start()
        result = segment(image, "shared", gpu_memory_gb=16)
    undisturbed = segment(image, "undisturbed", gpu_memory_gb=16)
    assert result["labels"] == undisturbed["labels"]
    return {"shared": result, "undisturbed_s": undisturbed["seconds"], "ours_gib": low}


def never_fits(image: str) -> dict[str, Any]:
    """A tile too large for what there is, and a card on which memory never falls free."""
    from cytopave.engine.errors import CytopaveError

    found: dict[str, Any] = {}
    try:
        segment(image, "too-large", gpu_memory_gb=0.9)
    except CytopaveError as error:
        found["planned"] = str(error)
    os.environ["CYTOPAVE_BACKOFF_SECONDS"], os.environ["CYTOPAVE_RETRIES"] = "2", "1"
    try:
        with tenant(image):
            segment(image, "full", gpu_memory_gb=16)
    except CytopaveError as error:
        found["full"] = str(error)
    assert all("GiB" in found[name] for name in ("planned", "full")), found
    return found


@contextmanager
def tenant(image: str) -> Iterator[tuple[Any, Any]]:
    """Another process that takes the card; gives its events `holding` and `release`."""
    context = multiprocessing.get_context("spawn")
    holding, release = context.Event(), context.Event()
    # The plan is made for the card when it is free; only then does the other tenant grow.
    plans = str(Path(image).parent / ".cytopave" / "*" / "plans" / "*.json")
    process = context.Process(target=hold_card, args=(plans, holding, release), daemon=True)
    process.start()
    try:
        yield holding, release
    finally:
        release.set()
        process.join()


def hold_card(plans: str, holding: Any, release: Any) -> None:
    """Take all but a little of the card once there is a plan, until told to let go."""
    import torch

    torch.zeros(1, device="cuda")
    over = time.monotonic() + BOUND
    while not glob.glob(plans):
        if time.monotonic() > over or release.is_set():
            return
        time.sleep(0.01)
    free, _ = torch.cuda.mem_get_info()
    block = torch.empty(free - GIB // 4, dtype=torch.uint8, device="cuda")
    holding.set()
    release.wait(BOUND)
    del block


def watch(holding: Any, release: Any, low: list[float]) -> None:
    """Sample what other processes than the tenant hold, then let the card go after 30 s."""
    import pynvml

    holding.wait(120)
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for _ in range(30):
        time.sleep(1)
        used = [p.usedGpuMemory or 0 for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        low.append(round((sum(used) - max(used, default=0)) / GIB, 2))
    release.set()


def named_devices(_: str) -> dict[str, Any]:
    """The probe in processes that are granted a device by index and by UUID."""
    import pynvml

    pynvml.nvmlInit()
    uuids = [
        pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i))
        for i in range(pynvml.nvmlDeviceGetCount())
    ]
    script = (
        "import unpacked, torch; from cytopave.engine.gpu.vram import probe_gpu;"
        "print(probe_gpu().uuid, 'GPU-' + str(torch.cuda.get_device_properties(0).uuid))"
    )
    seen = {}
    for grant in [*map(str, range(len(uuids))), *uuids, ",".join(reversed(uuids))]:
        places = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": grant,
            "PYTHONPATH": os.pathsep.join(filter(None, places)),
        }
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        ours, torchs = done.stdout.split()
        assert ours == torchs
        seen[grant] = ours
    return seen


def segment(image: str, name: str, **options: Any) -> dict[str, Any]:
    """One run; returns seconds, stages and a digest of the labels."""
    import numpy as np

    from cytopave.engine.omezarr.labels import open_labels
    from cytopave.engine.segmenters import Cellpose
    from cytopave.engine.tiling import Tiling
    from cytopave.flows import segment_image

    since = time.perf_counter()
    report = segment_image(
        image,
        name=name,
        segmenter=Cellpose(model="nuclei-tiny", device=DEVICE, batch_size=64),
        tiling=Tiling(tile=(1024, 1024), halo=64),
        overwrite=True,
        **options,
    )
    labels = np.asarray(open_labels(image, name).levels[0][:])
    return {
        "seconds": round(time.perf_counter() - since, 1),
        "objects": report.n_objects,
        "stages": {s.name: round(s.seconds, 2) for s in report.stages},
        "labels": hashlib.sha256(labels.tobytes()).hexdigest()[:16],
    }


if __name__ == "__main__":
    main()
