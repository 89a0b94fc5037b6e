"""Stage tiles, or merge staged ones, with patchworks and dask-image, in their own environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def stage(image: str, folder: str, tile: str, halo: str) -> None:
    import zarr
    from patchworks import create_stage, spatial_tiles, stage_tile
    from run_patchworks import segment

    array = zarr.open_array(f"{image}/0", mode="r")
    shape = (int(tile), int(tile))
    store = f"{folder}/stage.zarr"
    create_stage(store, array.shape, shape)
    counts = {}
    for index in range(len(spatial_tiles(array.shape, shape))):
        counts[index] = stage_tile(
            array,
            segment,
            store,
            index,
            tile_shape=shape,
            overlap=int(halo),
            halo_dir=f"{folder}/halo",
        )
    Path(folder, "counts.json").write_text(json.dumps(counts))


def merge_patchworks(folder: str, output: str, rule: str) -> None:
    from patchworks import merge_tile_labels

    merge_tile_labels(
        f"{folder}/stage.zarr",
        write_to=output,
        input_component="staged",
        n_workers=2,
        label_counts=_counts(folder),
        halo_dir=f"{folder}/halo" if rule == "iou" else None,
    )


def merge_dask_image(folder: str, output: str) -> None:
    import dask
    import dask.array as da
    import numpy as np
    from dask_image.ndmeasure._utils import _label
    from scipy.ndimage import generate_binary_structure

    staged = da.from_zarr(f"{folder}/stage.zarr", component="staged")
    counts = np.array(list(_counts(folder).values()))
    before = (np.cumsum(counts) - counts).reshape(staged.numblocks)

    def distinct(
        block: np.ndarray, block_info: dict[int, dict[str, tuple[int, ...]]]
    ) -> np.ndarray:
        first = before[block_info[0]["chunk-location"]]
        return np.where(block > 0, block + first, 0).astype(np.int32)

    labels = staged.map_blocks(distinct, dtype=np.int32)
    total = dask.delayed(int)(counts.sum())
    graph = _label.label_adjacency_graph(labels, generate_binary_structure(2, 2), total)
    mapping = _label.connected_components_delayed(graph)
    merged = _label.relabel_blocks(labels, mapping)
    with dask.config.set(scheduler="threads", num_workers=2):
        merged.to_zarr(output, component="labels")


def _counts(folder: str) -> dict[int, int]:
    found = json.loads(Path(folder, "counts.json").read_text())
    return {int(index): n for index, n in found.items()}


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "stage":
        stage(*arguments)
    elif what == "dask-image":
        merge_dask_image(*arguments)
    else:
        folder, output = arguments
        merge_patchworks(folder, output, rule=what.partition(" ")[2])
