"""Stores for tests: images of every format that can be read, and what is inside them."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from zarr.storage import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pytest

UNITS = {"t": "second", "z": "micrometer", "y": "micrometer", "x": "micrometer"}
KINDS = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}
BY_NDIM = {2: "yx", 3: "zyx", 4: "czyx", 5: "tczyx"}


def pixels(shape: Sequence[int], dtype: Any = "uint16", *, seed: int = 0) -> np.ndarray:
    """Noise that uses the dtype's range; the same for the same arguments."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind == "f":
        return rng.normal(0, 100, shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, endpoint=True, dtype=dtype)


def plain_array(
    path: str | Path,
    data: np.ndarray,
    *,
    zarr_format: int = 3,
    chunks: Sequence[int] | None = None,
    shards: Sequence[int] | None = None,
    dtype: Any = None,
    **kwargs: Any,
) -> zarr.Array[Any]:
    """Write a zarr array; ``dtype`` sets the stored byte order."""
    array = zarr.create_array(
        str(path),
        shape=data.shape,
        dtype=dtype or data.dtype,
        chunks=tuple(chunks or data.shape),
        shards=tuple(shards) if shards else None,
        zarr_format=3 if zarr_format == 3 else 2,
        overwrite=True,
        **kwargs,
    )
    array[...] = data
    return array


def attributes(
    axes: str,
    *,
    version: str,
    n_levels: int = 1,
    scale: float | Sequence[float] = 0.5,
    factors: Sequence[float] | None = None,
    translate: bool = False,
    channels: Sequence[str] = (),
) -> dict[str, Any]:
    """OME-Zarr attributes of an image, written by hand so that they test the reader.

    ``scale`` is the size of a pixel along every axis but C, or one number an axis.
    """
    sizes = (
        [1.0 if a == "c" else float(scale) for a in axes]
        if isinstance(scale, float | int)
        else [*scale]
    )
    datasets = []
    for k, factor in enumerate(factors or [2**k for k in range(n_levels)]):
        scales = [s * (factor if a in "yx" else 1) for a, s in zip(axes, sizes, strict=True)]
        steps: list[dict[str, Any]] = [{"type": "scale", "scale": scales}]
        if translate:
            shift = [
                s * (factor - 1) / 2 if a in "yx" else 0.0 for a, s in zip(axes, sizes, strict=True)
            ]
            steps.append({"type": "translation", "translation": shift})
        datasets.append({"path": f"s{k}", "coordinateTransformations": steps})
    multiscale: dict[str, Any] = {
        "axes": [
            {"name": a, "type": KINDS[a]} | ({"unit": UNITS[a]} if a in UNITS else {}) for a in axes
        ],
        "datasets": datasets,
    }
    content: dict[str, Any] = {"multiscales": [multiscale]}
    if channels:
        content["omero"] = {"channels": [{"label": c} for c in channels]}
    if version == "0.5":
        return {"ome": {"version": "0.5"} | content}
    multiscale["version"] = version
    return content


def ome_image(
    path: str | Path,
    data: np.ndarray,
    *,
    axes: str | None = None,
    version: str = "0.5",
    n_levels: int = 1,
    chunks: Sequence[int] | None = None,
    shards: Sequence[int] | None = None,
    dtype: Any = None,
    **metadata: Any,
) -> Path:
    """Write an OME-Zarr image; coarser levels take every second pixel in Y and X."""
    axes = axes or BY_NDIM[data.ndim]
    zarr_format = 3 if version == "0.5" else 2
    group(path, attributes(axes, version=version, n_levels=n_levels, **metadata), version=version)
    step = tuple(slice(None, None, 2) if a in "yx" else slice(None) for a in axes)
    level = data
    for k in range(n_levels):
        size = tuple(map(min, chunks, level.shape)) if chunks else None
        plain_array(
            f"{path}/s{k}",
            level,
            zarr_format=zarr_format,
            chunks=size,
            shards=shards,
            dtype=dtype,
            **({"dimension_names": list(axes)} if zarr_format == 3 else separator("/")),
        )
        level = level[step]
    return Path(path)


def group(path: str | Path, attributes: dict[str, Any], *, version: str = "0.5") -> None:
    """Write a zarr group in the format of an OME-Zarr version."""
    zarr.create_group(
        str(path), attributes=attributes, zarr_format=3 if version == "0.5" else 2, overwrite=True
    )


def separator(sign: str) -> dict[str, Any]:
    """Arguments that make a format 2 array nest its chunks, as OME-Zarr 0.4 does."""
    return {"chunk_key_encoding": {"name": "v2", "separator": sign}}


def chunk_files(array: Path) -> list[Path]:
    """The files of an array that hold pixels, sorted."""
    names = {"zarr.json", ".zarray", ".zattrs"}
    return sorted(p for p in array.rglob("*") if p.is_file() and p.name not in names)


def listed(image: Path) -> list[str]:
    """Names of the label images that a reader finds."""
    for name in ("zarr.json", ".zattrs"):
        path = image / "labels" / name
        if path.exists():
            content = json.loads(path.read_text())
            if name == "zarr.json":
                content = content["attributes"].get("ome", {})
            return list(content.get("labels", []))
    return []


class Traffic:
    """Counts what zarr reads from and writes to local stores."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()
        get, put = LocalStore.get, LocalStore.set
        get_sync, put_sync = LocalStore.get_sync, LocalStore.set_sync
        traffic = self

        async def counted_get(store: LocalStore, key: str, *args: Any, **kwargs: Any) -> Any:
            value = await get(store, key, *args, **kwargs)
            if value is not None:  # a look at what is not there costs next to nothing
                traffic.reads[f"{store.root}/{key}"] += 1
            return value

        async def counted_set(store: LocalStore, key: str, value: Any) -> None:
            traffic.writes[f"{store.root}/{key}"] += 1
            await put(store, key, value)

        def counted_get_sync(store: LocalStore, key: str, *args: Any, **kwargs: Any) -> Any:
            value = get_sync(store, key, *args, **kwargs)
            if value is not None:
                traffic.reads[f"{store.root}/{key}"] += 1
            return value

        def counted_set_sync(store: LocalStore, key: str, value: Any) -> None:
            traffic.writes[f"{store.root}/{key}"] += 1
            put_sync(store, key, value)

        monkeypatch.setattr(LocalStore, "get", counted_get)
        monkeypatch.setattr(LocalStore, "set", counted_set)
        monkeypatch.setattr(LocalStore, "get_sync", counted_get_sync)
        monkeypatch.setattr(LocalStore, "set_sync", counted_set_sync)

    @staticmethod
    def chunks(counts: Counter[str]) -> Counter[str]:
        """Without the metadata."""
        metadata = ("zarr.json", ".zarray", ".zattrs", ".zgroup")
        return Counter({k: n for k, n in counts.items() if not k.endswith(metadata)})


def random_labels(shape: Sequence[int], *, seed: int = 0, size: int = 7) -> np.ndarray:
    """Blocks of one id each, with gaps of background."""
    labels = np.zeros(shape, np.uint32)
    starts = itertools.product(*(range(0, n, size) for n in shape))
    rng = np.random.default_rng(seed)
    for i, start in enumerate(starts):
        if rng.random() < 0.7:
            labels[tuple(slice(a, a + size - 1) for a in start)] = i + 1
    return labels


def partition_count(shape: Sequence[int], boxes: Iterable[Any]) -> np.ndarray:
    """How many of the boxes hold each pixel."""
    count = np.zeros(shape, int)
    for box in boxes:
        count[box.slices] += 1
    return count
