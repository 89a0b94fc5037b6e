"""The oracle's world on disk: an image that says where its cells are, and a network that listens.

A folder gets ``image.zarr`` for cytopave (three channels, float16), ``packed.zarr`` for tools that
take one channel (ten bits for each of the three), the known cells (``truth.npy``), a small image
for starting up, and ``network.pt``, ViT-L with random weights: or it takes the network that ships.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import oracle

if TYPE_CHECKING:
    from collections.abc import Iterator

MARGIN = 64
"""Pixels around a block whose flows are computed: more than a cell is long."""
SMALL = 512
"""Side of the image that is segmented to start up."""


def make(folder: Path, *, side: int, tile: int, small: bool) -> dict[str, Any]:
    """Write the world, unless it is there; returns the facts of it."""
    done = folder / "world.json"
    if done.exists():
        return dict(json.loads(done.read_text()))
    since = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {"side": side, "tile": tile}
    for name, length in (("", side), ("small-", SMALL)):
        labels = oracle.cells(length)
        np.save(folder / f"{name}truth.npy", labels)
        chunk = tile if not name else SMALL // 2
        _write(folder, name, labels, chunk)
        facts[f"{name}cells"] = int(labels.max())
    facts["network"] = str(_network(folder, small=small))
    facts["wall_s"] = round(time.perf_counter() - since, 1)
    done.write_text(json.dumps(facts))
    return facts


def _write(folder: Path, name: str, labels: np.ndarray, chunk: int) -> None:
    import zarr

    side = len(labels)
    image = zarr.create_array(
        str(folder / f"{name}image.zarr"),
        shape=(3, side, side),
        chunks=(1, chunk, chunk),
        dtype="f2",
        dimension_names=["c", "y", "x"],
    )
    packed = zarr.create_array(
        str(folder / f"{name}packed.zarr"), shape=(side, side), chunks=(chunk, chunk), dtype="u4"
    )
    for (y, x), flows in _flows(labels, chunk):
        box = (slice(y, y + flows.shape[1]), slice(x, x + flows.shape[2]))
        image[(slice(None), *box)] = flows
        packed[box] = pack(flows)


def _flows(labels: np.ndarray, step: int) -> Iterator[tuple[tuple[int, int], np.ndarray]]:
    """What a perfect network would say, block by block, each cell as if it were whole there."""
    import fastremap
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for y in range(0, len(labels), step):
        for x in range(0, len(labels), step):
            top, left = max(0, y - MARGIN), max(0, x - MARGIN)
            part = labels[top : y + step + MARGIN, left : x + step + MARGIN]
            dense, _ = fastremap.renumber(np.ascontiguousarray(part), preserve_zero=True)
            flows = oracle.answers(dense.astype(np.int32), device)
            yield (y, x), flows[:, y - top : y - top + step, x - left : x - left + step]


def pack(flows: np.ndarray) -> np.ndarray:
    """Ten bits a channel, for values from -8 to 8: ``(3, Y, X)`` to ``(Y, X)`` uint32."""
    levels = np.rint((flows.astype(np.float32).clip(-8, 8) + 8) * (1023 / 16)).astype(np.uint32)
    return np.asarray(levels[0] << 20 | levels[1] << 10 | levels[2])


def unpack(packed: np.ndarray) -> np.ndarray:
    """The inverse of `pack`, to within 0.008: ``(3, Y, X)`` float32."""
    numbers = np.asarray(packed).astype(np.uint32)
    levels = np.stack([(numbers >> shift) & 1023 for shift in (20, 10, 0)])
    return levels.astype(np.float32) * np.float32(16 / 1023) - 8


def _network(folder: Path, *, small: bool) -> Path:
    from cytopave.engine.segmenters import cellpose_weights

    if small:
        return cellpose_weights.find(cellpose_weights.BUNDLED)
    import torch

    net = oracle.vit_l(torch.float32, torch.device("cpu"))
    path = folder / "network.pt"
    torch.save(net.state_dict(), path)
    return path


def stock_model(network: str) -> Any:
    """Cellpose's own `CellposeModel` of a file, on the GPU where there is one."""
    from cytopave.engine.segmenters import cellpose_weights
    from cytopave.engine.segmenters.cellpose_adapter import build

    path = Path(network)
    built: Any = build(path, cellpose_weights.inspect(path), device="auto", bfloat16=True)
    return built.model


def stock_labels(model: Any, packed: np.ndarray, batch: int) -> np.ndarray:
    """Cellpose's own labels of a packed block."""
    labels = model.eval(
        unpack(packed), channel_axis=0, normalize=False, batch_size=batch, max_size_fraction=1.0
    )[0]
    return np.asarray(labels).astype(np.int32)
