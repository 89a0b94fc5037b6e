"""One run of patchworks' ``tile_process`` with stock Cellpose on the oracle's world.

``run_patchworks_oracle.py FOLDER TILE HALO BATCH WORKERS RULE``; its packages come first on
``PYTHONPATH`` (gpu_segment.py starts it). Prints JSON. Uses its public interface alone.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import unpacked  # noqa: F401 - before cytopave

# isort: split

import numpy as np
import oracle_world
import zarr
from gpu_segment_parts import counted

_state: dict[str, Any] = {}


def segment(block: np.ndarray) -> np.ndarray:
    """Stock Cellpose's labels of a block."""
    return oracle_world.stock_labels(_state["model"], block, _state["batch"])


def main(folder: Path, tile: int, halo: int, batch: int, workers: int, rule: str) -> None:
    import dask.array
    from patchworks import tile_process

    network = json.loads((folder / "world.json").read_text())["network"]
    _state.update(model=oracle_world.stock_model(network), batch=batch)
    segment(np.asarray(zarr.open_array(str(folder / "small-packed.zarr"))[:256, :256]))
    image = dask.array.from_zarr(str(folder / "packed.zarr"))
    output = folder / "patchworks.zarr"
    shutil.rmtree(output, ignore_errors=True)
    since = time.perf_counter()
    tile_process(
        image,
        segment,
        tile_shape=(tile, tile),
        overlap=halo,
        max_workers=workers or None,
        progress=False,
        write_to=str(output),
        stitch=rule,
    )
    seconds = time.perf_counter() - since
    labels = np.asarray(zarr.open_array(str(output / "labels"), mode="r")[...])
    print(json.dumps({"seconds": seconds, **counted(folder, labels)}))


if __name__ == "__main__":
    tile, halo, batch, workers = map(int, sys.argv[2:6])
    main(Path(sys.argv[1]), tile, halo, batch, workers, sys.argv[6])
