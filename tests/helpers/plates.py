"""Plates of wells for tests, in the layout of OME-NGFF."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stores

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np


def write_plate(
    path: Path,
    wells: Mapping[str, Sequence[np.ndarray]],
    *,
    version: str = "0.5",
    absent: Sequence[str] = (),
    **how: Any,
) -> Path:
    """Write a plate.

    Args:
        path: Its group.
        wells: The images of each well, such as ``{"A/1": [first, second]}``.
        version: OME-Zarr version.
        absent: Wells or images, such as ``B/2`` and ``A/1/0``, which are named and not there.
        how: Arguments of `stores.ome_image`.
    """
    rows = sorted({name.split("/")[0] for name in wells})
    columns = sorted({name.split("/")[1] for name in wells})
    listed = [
        {
            "path": name,
            "rowIndex": rows.index(name.split("/")[0]),
            "columnIndex": columns.index(name.split("/")[1]),
        }
        for name in wells
    ]
    plate = {
        "rows": [{"name": r} for r in rows],
        "columns": [{"name": c} for c in columns],
        "wells": listed,
        "field_count": max(map(len, wells.values())),
    }
    _group(path, "plate", plate, version)
    for row in rows:
        stores.group(path / row, {}, version=version)
    for name, images in wells.items():
        fields = [{"path": str(i)} for i in range(len(images))]
        _group(path / name, "well", {"images": fields}, version)
        for i, pixels in enumerate(images):
            stores.ome_image(path / name / str(i), pixels, version=version, **how)
    for name in absent:
        shutil.rmtree(path / name)
    return path


def _group(path: Path, kind: str, content: dict[str, Any], version: str) -> None:
    attributes = {kind: {**content, "version": version} if version == "0.4" else content}
    if version == "0.5":
        attributes = {"ome": {"version": "0.5", **attributes}}
    stores.group(path, attributes, version=version)
