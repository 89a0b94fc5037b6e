"""Images with label images in them, and the small blocks that make small images large."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import stores

from cytopave.engine.omezarr import pyramid
from cytopave.engine.refine import refinement
from cytopave.engine.relations import relation
from cytopave.engine.tables import measurement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    import pytest


def labelled(
    path: Path,
    labels: dict[str, np.ndarray],
    *,
    axes: str | None = None,
    version: str = "0.5",
    chunks: Sequence[int] | None = None,
    **metadata: Any,
) -> Path:
    """An image of noise with label images, all in chunks alike."""
    first = next(iter(labels.values()))
    image = stores.ome_image(
        path, stores.pixels(first.shape), axes=axes, version=version, chunks=chunks, **metadata
    )
    named = {"labels": list(labels)}
    attributes = {"ome": {"version": "0.5", **named}} if version == "0.5" else named
    stores.group(image / "labels", attributes, version=version)
    for name, ids in labels.items():
        stores.ome_image(
            image / "labels" / name, ids, axes=axes, version=version, chunks=chunks, **metadata
        )
    return image


def small_blocks(monkeypatch: pytest.MonkeyPatch, *, side: int = 32) -> None:
    """Blocks, regions and tasks of a few chunks of this side."""
    pixels = 2 * side * side
    monkeypatch.setattr(pyramid, "CHUNK", side)
    monkeypatch.setattr(pyramid, "CHUNK_Z", 2)
    monkeypatch.setattr(pyramid, "GROUP_PIXELS", pixels)
    monkeypatch.setattr(pyramid, "UNIT_PIXELS", pixels)
    monkeypatch.setattr(measurement, "REGION_PIXELS", pixels)
    for module in (refinement, relation, measurement):
        monkeypatch.setattr(module, "LEAST_PIXELS", 2 * pixels)
