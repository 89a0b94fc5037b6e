from __future__ import annotations

from pathlib import Path

import numpy as np
import stores

from cytopave.engine.omezarr.image import open_image
from cytopave.engine.show.detail import draw_detail


def test_with_known_ranges_it_reads_no_more_than_it_shows(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 2000, (80, 80)).astype(np.uint16)
    labels = np.zeros((80, 80), np.uint32)
    labels[30:50, 30:50] = 7
    pair = [
        stores.ome_image(tmp_path / f"{name}.zarr", data, chunks=(20, 20))
        for name, data in (("image", image), ("labels", labels))
    ]
    for store in pair:
        for row, column in np.ndindex(4, 4):
            if not (1 <= row <= 2 and 1 <= column <= 2):
                chunk = Path(store) / "0" / "c" / str(row) / str(column)
                if chunk.exists():
                    chunk.write_bytes(b"not to be read")
    picture = draw_detail(*map(open_image, pair), ranges=[(500.0, 1500.0)], side=36)
    assert picture.shape == (36, 36, 3)
    grey = ((image[22:58, 22:58].astype(np.float32) - 500) / 1000).clip(0, 1) * 255
    inside = np.zeros((36, 36), bool)
    inside[8:28, 8:28] = True
    edge = inside.copy()
    edge[9:27, 9:27] = False
    np.testing.assert_array_equal(
        picture[~edge], np.repeat(grey.astype(np.uint8)[~edge, None], 3, 1)
    )
    assert (picture[edge] != picture[edge][:, :1]).any(axis=1).all()
