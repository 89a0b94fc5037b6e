"""How often things are read and written: what a run costs beside the segmentation itself."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stores
from runs import blobs, components, labels_of, merge_here, plan_of

from cytopave.engine.omezarr.image import Image
from cytopave.engine.reading import TileReader
from cytopave.engine.segment import segment_tiles
from cytopave.engine.segmenters import Threshold
from cytopave.engine.tiling import Tiling

if TYPE_CHECKING:
    from pathlib import Path

    from cytopave.engine.tiling import Tile


@pytest.mark.parametrize(
    ("version", "shards"), [("0.4", None), ("0.5", None), ("0.5", (256, 256))], ids=str
)
def test_reads_and_writes(
    version: str, shards: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = blobs((1000, 900))
    image = stores.ome_image(
        folder / "image.zarr",
        mask.astype(np.uint8) + 1,  # of nothing but zeros there is no file
        version=version,
        chunks=(64, 64),
        shards=shards,
    )
    request: dict[str, Any] = {
        "segmenter": Threshold(threshold=1.5),
        "tiling": Tiling(tile=(128, 128), halo=16),  # an eighth
        "batch_seconds": 20,
        "measure": True,
    }
    plan = plan_of(image, **request)
    assert len(plan.grid) == 56
    assert len(plan.batches) >= 6
    asked: Counter[int] = Counter()
    decoded: Counter[tuple[int, ...]] = Counter()
    read, read_block = TileReader.read, Image.read_block

    def counted_read(reader: TileReader, tile: Tile) -> np.ndarray:
        asked[tile.index] += 1
        return read(reader, tile)

    def counted_block(self: Image, box: Any) -> np.ndarray:
        for block in box.blocks(self.canonical_chunks):
            decoded[
                tuple(a // n for a, n in zip(block.start, self.canonical_chunks, strict=True))
            ] += 1
        return read_block(self, box)

    monkeypatch.setattr(TileReader, "read", counted_read)
    monkeypatch.setattr(Image, "read_block", counted_block)
    traffic = stores.Traffic(monkeypatch)
    for batch in plan.batches:
        segment_tiles(plan, batch)
    merge_here(plan, table=True)
    n_chunks = 16 * 15
    assert asked == Counter(range(56))
    assert len(decoded) == n_chunks
    assert decoded.total() <= 2 * n_chunks
    files = traffic.chunks(traffic.reads)
    of_image = {k: n for k, n in files.items() if "/image.zarr/s0/" in k}
    if shards is None:
        assert sum(of_image.values()) == decoded.total()
    # Each chunk of the output is written once, and only those of the coarsest levels are read.
    written = traffic.chunks(traffic.writes)
    labels = {k: n for k, n in written.items() if "/labels/" in k}
    assert set(labels.values()) == {1}
    assert len([k for k in labels if "/0/" in k.split(".staging")[1]]) == len(
        stores.chunk_files(image / "labels" / "cells" / "0")
    )
    monkeypatch.undo()
    np.testing.assert_array_equal(labels_of(image), components(mask))
