"""What other projects' readers see in an image: run by the Python of ``make readers``.

Prints one JSON document. Imports nothing of cytopave, and none of its tests'.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def by_ngio(store: str) -> dict[str, Any]:
    import ngio

    container = ngio.open_ome_zarr_container(store)
    image = container.get_image()
    size = image.pixel_size
    return {
        "levels": container.levels,
        "shape": list(image.shape),
        "channels": image.channel_labels,
        "sum": int(image.get_as_numpy().sum(dtype="int64")),
        "pixel size": [size.z, size.y, size.x, str(size.space_unit)],
    }


def by_ome_zarr(store: str) -> dict[str, Any]:
    from ome_zarr.io import parse_url
    from ome_zarr.reader import Reader

    (node,) = Reader(parse_url(store))()
    return {
        "shapes": [list(level.shape) for level in node.data],
        "channels": node.metadata.get("channel_names", node.metadata.get("name")),
    }


def by_napari(store: str) -> list[dict[str, Any]]:
    from napari_ome_zarr import napari_get_reader

    layers = napari_get_reader(store)(store)
    return [
        {
            "kind": kind,
            "name": facts.get("name"),
            "shapes": [list(level.shape) for level in data],
            "scale": list(facts.get("scale", [])),
            "color": facts["colormap"].name,
        }
        for data, facts, kind in layers
    ]


READERS = {"ngio": by_ngio, "ome-zarr-py": by_ome_zarr, "napari-ome-zarr": by_napari}

if __name__ == "__main__":
    print(json.dumps({name: read(sys.argv[1]) for name, read in READERS.items()}))
