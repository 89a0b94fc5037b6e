"""The same work on one card and on several, through LocalCUDACluster; devices by index and UUID.

    python benchmarks/gpu_cards.py FOLDER OUT.json [--repeat 2] [--cards 1 2]

The oracle's world of gpu_segment.py (``FOLDER`` as it left it, or made here), its image repeated
side by side. Workers have segmented a small image before; what is compared is the stage ``segment``
and the whole flow without start-up. Each number of cards is a process of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import unpacked  # noqa: F401 - before cytopave

# isort: split

import gpu_flow
import gpu_segment_parts as parts
import numpy as np
import oracle_world
import zarr

HERE = Path(__file__).parent
SIDE, TILE, HALO = 8192, 2048, 64


def main() -> None:
    """Run each number of cards, or one of them (``--one``)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeat", type=int, default=2, help="copies of the image side by side")
    parser.add_argument("--cards", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--one", type=int, help="this number of cards, in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(on_cards(options.folder, options.one)))
        return
    oracle_world.make(options.folder, side=SIDE, tile=TILE, small=False)
    repeated(options.folder, options.repeat)
    found: dict[str, Any] = {"when": time.strftime("%Y-%m-%d %H:%M:%S")}
    for cards in options.cards:
        command = [sys.executable, __file__, *sys.argv[1:], "--one", str(cards)]
        said = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, env=_environment(options), check=True
        )
        found[f"{cards} cards"] = json.loads(said.stdout.strip().splitlines()[-1])
        print(found[f"{cards} cards"], flush=True)
        options.out.write_text(json.dumps(found, indent=1))
    runs = [found[f"{n} cards"] for n in options.cards]
    found["segment, ratio"] = runs[0]["stages_s"]["segment"] / runs[-1]["stages_s"]["segment"]
    found["flow, ratio"] = runs[0]["seconds"] / runs[-1]["seconds"]
    found["same labels"] = len({run["digest"] for run in runs}) == 1
    found["visible"] = gpu_flow.named_devices("")
    options.out.write_text(json.dumps(found, indent=1))
    print(json.dumps({k: v for k, v in found.items() if not k.endswith("cards")}))


def repeated(folder: Path, times: int) -> None:
    """Write ``wide-image.zarr``: the image's chunks, so many times along X."""
    source = zarr.open_array(str(folder / "image.zarr"), mode="r")
    wide = zarr.create_array(
        str(folder / "wide-image.zarr"),
        shape=(*source.shape[:2], source.shape[2] * times),
        chunks=source.chunks,
        dtype=source.dtype,
        dimension_names=["c", "y", "x"],
        overwrite=True,
    )
    for y in range(0, source.shape[1], TILE):
        rows = np.asarray(source[:, y : y + TILE])
        for k in range(times):
            wide[:, y : y + TILE, k * source.shape[2] : (k + 1) * source.shape[2]] = rows


def on_cards(folder: Path, cards: int) -> dict[str, Any]:
    """Seconds of the flow on workers that are warm, and what names the labels."""
    from dask_cuda import LocalCUDACluster

    from cytopave.engine.omezarr.labels import open_labels
    from cytopave.tasks.runner import embedded_api

    embedded_api()
    with LocalCUDACluster(
        CUDA_VISIBLE_DEVICES=list(range(cards)), dashboard_address="127.0.0.1:0"
    ) as cluster:
        # small tiles, so that each worker gets some and builds its network
        _flow(folder, "small-", oracle_world.SMALL // 4, cluster.scheduler_address, cards)
        facts = _flow(folder, "wide-", TILE, cluster.scheduler_address, cards)
    labels = open_labels(str(folder / "wide-labels.zarr"), "cells").levels[0]
    digest = hashlib.sha256()
    for y in range(0, labels.shape[0], TILE):
        digest.update(np.ascontiguousarray(labels[y : y + TILE]).tobytes())
    return {**facts, "digest": digest.hexdigest()}


def _flow(folder: Path, name: str, tile: int, cluster: str, workers: int) -> dict[str, Any]:
    from cytopave.engine.tiling import Tiling
    from cytopave.flows import segment_image

    output = folder / f"{name}labels.zarr"
    shutil.rmtree(output, ignore_errors=True)
    since = time.perf_counter()
    report = segment_image(
        str(folder / f"{name}image.zarr"),
        segmenter=parts._segmenter(parts._facts(folder)["network"]),
        output=str(output),
        tiling=Tiling(tile=(tile, tile), halo=HALO if name == "wide-" else 32),
        cluster=cluster,
        workers=workers,
        measure=False,
    )
    return {
        "seconds": time.perf_counter() - since,
        "stages_s": {s.name: round(s.seconds, 3) for s in report.stages},
        "tasks": {s.name: s.tasks for s in report.stages},
        "objects": report.n_objects,
    }


def _environment(options: argparse.Namespace) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("CYTOPAVE_")}
    env["PYTHONPATH"] = os.pathsep.join(
        [str(HERE / "oracle_site"), str(HERE), env.get("PYTHONPATH", "")]
    )
    return env | {"PREFECT_HOME": str(options.folder / "prefect")}


if __name__ == "__main__":
    main()
