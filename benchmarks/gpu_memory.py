"""What a tile takes of a GPU's memory on Cellpose's fast path, beside what the planner assumes.

    python benchmarks/gpu_memory.py OUT.json [--sides 1024 2048 4096] [--batches 1 8 32 64]

Peaks of torch's allocator, less what was held before; for each architecture by patch batch (the
network alone), and for each window and share of foreground (everything from the network's answer
to labels). The context is what NVML sees of this process beyond torch. Needs torch and cellpose.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import unpacked  # noqa: F401 - before cytopave

# isort: split

import numpy as np
import oracle
import torch
from gpu_check import versions

from cytopave.engine.boxes import Box
from cytopave.engine.cellpose_fast import network as networks
from cytopave.engine.cellpose_fast.evaluate import Evaluator, Recipe
from cytopave.engine.segmenters import cellpose_placed, cellpose_weights, memory
from cytopave.engine.segmenters.place import Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from cytopave.engine.patchwise.evaluator import PatchNetwork

GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RECIPE = Recipe(1.0, oracle.RANGE, 0.4, 0.0, 15, 200)
MIB = 2**20


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--sides", type=int, nargs="*", default=[1024, 2048, 3072, 4096])
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8, 32, 64])
    options = parser.parse_args()
    found: dict[str, Any] = {"when": time.strftime("%Y-%m-%d %H:%M"), "versions": versions()}
    for name, build in (("vit_l", vit_l), ("nuclei-tiny", tiny)):
        net = build()
        found[name] = of_network(net, options.batches)
        if name == "vit_l":
            found["windows"] = of_windows(net, options.sides)
        found["context MiB"] = context()
        print(json.dumps(found[name]), flush=True)
        Path(options.out).write_text(json.dumps(found, indent=1))
        del net
    print_tables(found)
    Path(options.out).write_text(json.dumps(found, indent=1))


def vit_l() -> networks.Network:
    """ViT-L in bfloat16, which answers with what it is shown."""
    return networks.Network(oracle.asking(oracle.vit_l(torch.bfloat16, GPU)), batch=32)


def tiny() -> PatchNetwork:
    """The small network of this package."""
    path = cellpose_weights.find("nuclei-tiny")
    known = cellpose_weights.inspect(path)
    return cellpose_placed.build(path, known, device=GPU.type, bfloat16=True, batch=32).network


def of_network(net: PatchNetwork, batches: list[int]) -> dict[str, Any]:
    """Peak of the network alone, by patch batch, in MiB beyond weights."""
    found: dict[str, Any] = {}
    for batch in batches:
        net.set_batch(batch)
        patches = torch.zeros((batch, 3, 256, 256), device=GPU)
        found[str(batch)] = round(peak(functools.partial(net, patches)) / MIB, 1)
    return found


def of_windows(net: PatchNetwork, sides: list[int]) -> list[dict[str, Any]]:
    """Peak of a window by side and share of foreground; network batch 1, so that it hardly counts.

    The cells are dense in a part of the window as large as the share asks for.
    """
    net.set_batch(1)
    rows = []
    for side in sides:
        labels = oracle.cells(side)
        answers = oracle.answers(labels, GPU).astype(np.float32)
        dense = float((labels > 0).mean())
        for share in (0.0, 0.5, 1.0):
            image = answers.copy()
            image[:, int(side * share) :] = 0
            image[2, int(side * share) :] = -6
            rows.append(
                {"side": side, "foreground": round(dense * share, 3), **of_window(net, image)}
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


def of_window(net: PatchNetwork, image: np.ndarray) -> dict[str, Any]:
    """Peak of what follows the network, and of everything, in bytes a pixel of the window."""
    box = Box.of(image.shape[1:])
    place = Place("image", 0, box.shape, box, box)
    evaluator = Evaluator(net, keep_bytes=0)
    objects = peak(
        functools.partial(
            evaluator.objects, torch.from_numpy(image).to(GPU), RECIPE, evaluator._mark
        )
    )
    whole = peak(lambda: evaluator(image, place, RECIPE))
    share = float((image[2] > 0).mean())
    return {
        "objects B/px": round(objects / box.size, 1),
        "whole B/px": round(whole / box.size, 1),
        "assumed B/px": round(memory.fast_pixel_bytes(3, 2), 1),
        "share": round(share, 3),
    }


def peak(call: Callable[[], object]) -> int:
    """Bytes that a call allocates at most, beyond what is allocated before."""
    gc.collect()
    if GPU.type != "cuda":
        call()
        return 0
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    held = call()
    torch.cuda.synchronize()
    top = torch.cuda.max_memory_allocated()
    del held
    return int(top - before)


def context() -> float:
    """What the driver counts of this process beyond torch's own memory, in MiB."""
    if GPU.type != "cuda":
        return 0
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    total = float(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        if process.pid == os.getpid() and process.usedGpuMemory:
            total = process.usedGpuMemory
    return round((total - float(torch.cuda.memory_reserved())) / MIB, 1)


def print_tables(found: dict[str, Any]) -> None:
    """The same as Markdown."""
    print("\n| network | " + " | ".join(f"batch {b}" for b in found["vit_l"]) + " |")
    print("| --- |" + " --- |" * len(found["vit_l"]))
    for name in ("vit_l", "nuclei-tiny"):
        print(f"| {name}, MiB | " + " | ".join(str(v) for v in found[name].values()) + " |")
    rows = found["windows"]
    print("\n| " + " | ".join(rows[0]) + " |")
    print("| " + " | ".join("---" for _ in rows[0]) + " |")
    for row in rows:
        print("| " + " | ".join(str(v) for v in row.values()) + " |")
    print(f"\ncontext: {found['context MiB']} MiB")


if __name__ == "__main__":
    main()
