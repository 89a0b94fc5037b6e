"""Right labels for every kind of image that is promised: exactly those of the untiled method."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stores
from runs import blobs, components, components_over_time, labels_of, provenance, run_here
from yaozarrs import validate_zarr_store

from cytopave.engine.omezarr.labels import open_labels
from cytopave.engine.segmenters import Threshold
from cytopave.engine.tiling import Tiling

if TYPE_CHECKING:
    from runs import Flows

LOW, HIGH = 20, 90


@dataclass(frozen=True)
class Case:
    """An image whose foreground is known, and how it is to be segmented."""

    axes: str
    shape: tuple[int, ...]
    version: str = "0.5"
    dtype: str = "uint16"
    chunks: tuple[int, ...] | None = None
    shards: tuple[int, ...] | None = None
    n_levels: int = 1
    tile: tuple[int, ...] = (64, 64)
    halo: int = 12
    request: dict[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> np.ndarray:
        """Write the image; gives the foreground of the channel that is segmented: T?[Z]YX."""
        mask = blobs(self.shape, sigma=2.5) if "c" not in self.axes else self._stack()
        data = np.where(mask, HIGH, LOW)
        data = mask if self.dtype == "bool" else data.astype(self.dtype)
        stores.ome_image(
            path,
            data,
            axes=self.axes,
            version=self.version,
            n_levels=self.n_levels,
            chunks=self.chunks,
            shards=self.shards,
            dtype=self.dtype,
            channels=["nuclei", "membrane"] if "c" in self.axes else (),
        )
        if "c" in self.axes:
            mask = mask.take(self.request["channels"] in ([1], ["membrane"]), self.axes.index("c"))
        return mask

    def _stack(self) -> np.ndarray:
        """Another foreground in each channel and time point; no smoothing across these."""
        lead = self.shape[: -len(self.axes.replace("t", "").replace("c", ""))]
        rest = self.shape[len(lead) :]
        n = int(np.prod(lead))
        return np.stack([blobs(rest, sigma=2.5, seed=i) for i in range(n)]).reshape(self.shape)


FLOWS = {
    "yx-v2": Case("yx", (300, 213), "0.4", chunks=(50, 77)),
    "yx-v3-sharded": Case("yx", (213, 300), chunks=(32, 32), shards=(128, 64), n_levels=3),
    "zyx-float32": Case(
        "zyx", (19, 90, 101), dtype="float32", chunks=(4, 64, 64), tile=(8, 48, 48), halo=5
    ),
    "cyx-by-name": Case(
        "cyx",
        (2, 140, 150),
        "0.4",
        dtype="uint8",
        chunks=(1, 64, 64),
        request={"channels": ["membrane"]},
    ),
    "tczyx-big-endian": Case(
        "tczyx",
        (3, 2, 7, 90, 70),
        "0.4",
        dtype=">u2",
        chunks=(2, 1, 3, 64, 64),
        tile=(48, 48),
        halo=4,
        request={"channels": [0]},
    ),
}


@pytest.mark.parametrize("name", FLOWS)
def test_labels_are_those_of_the_whole_image(name: str, folder: Path, flows: Flows) -> None:
    case = FLOWS[name]
    path = folder / "image.zarr"
    mask = case.write(path)
    before = {p: p.stat().st_mtime_ns for p in stores.chunk_files(path)}
    report = flows.segment(
        path,
        segmenter=Threshold(),
        tiling=Tiling(tile=case.tile, halo=case.halo),
        **case.request,
    )
    truth = components_over_time(mask) if "t" in case.axes else components(mask)
    np.testing.assert_array_equal(labels_of(path), truth)
    assert report.n_objects == truth.max()
    assert report.n_joined > 0
    assert report.n_tiles >= 9
    check_metadata(path, case)
    # Nothing else is left, and the image is as it was.
    assert sorted(p.name for p in folder.iterdir()) == ["image.zarr"]
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert sorted(p.name for p in (path / "labels").iterdir() if p.is_dir()) == ["cells"]


def check_metadata(path: Path, case: Case) -> None:
    # Like many images, those with channels have metadata that the validator refuses; the labels
    # of such an image are published all the same, and were validated before.
    if "c" not in case.axes:
        validate_zarr_store(str(path))
        validate_zarr_store(str(path / "labels" / "cells"))
    assert stores.listed(path) == ["cells"]
    labels = open_labels(path, "cells")
    assert labels.levels[0].dtype == np.uint32
    attributes = labels.attributes.get("ome", labels.attributes)
    (multiscale,) = attributes["multiscales"]
    axes = [a["name"] for a in multiscale["axes"]]
    assert axes == [a for a in case.axes if a != "c"]
    own = json.loads(json.dumps(stores.attributes(case.axes, version=case.version)))
    (image,) = own.get("ome", own)["multiscales"]
    scale = image["datasets"][0]["coordinateTransformations"][0]["scale"]
    scale = [s for s, a in zip(scale, case.axes, strict=True) if a != "c"]
    found = multiscale["datasets"][0]["coordinateTransformations"][0]["scale"]
    assert found == scale
    assert len(labels.levels) >= case.n_levels
    levels = [np.asarray(level[...]) for level in labels.levels]
    for fine, coarse in itertools.pairwise(levels):
        picked = [slice(None, None, 2) if a in "yx" else slice(None) for a in axes]
        np.testing.assert_array_equal(coarse, fine[tuple(picked)])
    facts = provenance(path)
    assert facts["segmenter"]["kind"] == "threshold"
    assert LOW <= facts["segmenter"]["threshold"] < HIGH
    assert facts["halo"][-1] == case.halo
    assert facts["n_objects"] == levels[0].max()
    assert len(facts["digest"]) == 64


HERE = {
    "uint8": Case("yx", (130, 140), dtype="uint8", chunks=(32, 32)),
    "bool": Case("yx", (130, 140), dtype="bool", chunks=(32, 32)),
    "big-endian-float": Case("yx", (130, 140), "0.4", dtype=">f4", chunks=(32, 32)),
    "float64": Case("yx", (130, 140), dtype="float64", chunks=(32, 32)),
    "int16": Case("yx", (130, 140), dtype="int16", chunks=(32, 32)),
    "rest-thinner-than-halo": Case("yx", (133, 197), chunks=(32, 32)),
    "rest-of-one-pixel": Case("yx", (129, 193), chunks=(40, 40)),
    "no-halo": Case("yx", (130, 140), halo=0, chunks=(32, 32)),
    "halo-as-long-as-the-tile": Case("yx", (90, 90), tile=(16, 16), halo=16, chunks=(32, 32)),
    "one-tile": Case("yx", (50, 40), tile=(64, 64), chunks=(32, 32)),
    "smaller-than-the-halo": Case("yx", (9, 7), tile=(64, 64), halo=12),
    "one-pixel-high": Case("yx", (1, 300), chunks=(1, 64)),
    "one-pixel-wide": Case("yx", (300, 1), chunks=(64, 1)),
    "one-pixel": Case("yx", (1, 1)),
    "one-plane": Case("zyx", (1, 100, 100), chunks=(1, 64, 64), tile=(48, 48), halo=8),
    "many-planes-of-a-pixel": Case("zyx", (200, 1, 1), tile=(32, 1, 1), halo=8, chunks=(64, 1, 1)),
    "planes-apart": Case("zyx", (20, 60, 60), tile=(3, 32, 32), halo=3, chunks=(8, 32, 32)),
    "czyx": Case(
        "czyx",
        (2, 9, 70, 70),
        chunks=(2, 4, 32, 32),
        tile=(4, 32, 32),
        halo=3,
        request={"channels": [1]},
    ),
    "tyx": Case("tyx", (4, 90, 70), "0.4", chunks=(1, 64, 64), tile=(48, 48), halo=8),
    "tczyx-sharded": Case(
        "tczyx",
        (2, 2, 8, 64, 64),
        chunks=(1, 1, 4, 32, 32),
        shards=(2, 2, 8, 64, 64),
        tile=(4, 32, 32),
        halo=3,
        request={"channels": ["nuclei"]},
    ),
}


@pytest.mark.parametrize("name", HERE)
def test_shapes_and_types(name: str, folder: Path) -> None:
    case = HERE[name]
    path = folder / "image.zarr"
    mask = case.write(path)
    run_here(
        path,
        segmenter=Threshold(threshold=(LOW + HIGH) / 2 if case.dtype != "bool" else 0.5),
        tiling=Tiling(tile=case.tile, halo=case.halo),
        **case.request,
    )
    truth = components_over_time(mask) if "t" in case.axes else components(mask)
    np.testing.assert_array_equal(labels_of(path), truth)


def test_time_points_are_never_merged(folder: Path) -> None:
    """The same objects at the same place, at every time: other objects each time."""
    mask = np.broadcast_to(blobs((90, 90)), (3, 90, 90))
    path = stores.ome_image(folder / "image.zarr", mask.astype(np.uint8), axes="tyx")
    run_here(path, segmenter=Threshold(threshold=0.5), tiling=Tiling(tile=(32, 32), halo=8))
    labels = labels_of(path)
    np.testing.assert_array_equal(labels, components_over_time(mask))
    seen = [set(np.unique(frame[frame > 0])) for frame in labels]
    assert not seen[0] & seen[1]
    assert not seen[1] & seen[2]


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_a_coarser_level(version: str, folder: Path, flows: Flows) -> None:
    """Labels of level 1 have its pixel size, and as many levels as the image has."""
    mask = blobs((400, 300), sigma=5)
    data = np.where(mask, HIGH, LOW).astype(np.uint8)
    path = stores.ome_image(
        folder / "image.zarr", data, version=version, n_levels=3, chunks=(64, 64)
    )
    report = flows.segment(
        path, segmenter=Threshold(), tiling=Tiling(tile=(64, 64), halo=8), level=1, name="half"
    )
    truth = components(mask[::2, ::2])
    np.testing.assert_array_equal(labels_of(path, "half"), truth)
    assert report.n_objects == truth.max()
    labels = open_labels(path, "half")
    attributes = labels.attributes.get("ome", labels.attributes)
    scales = [
        d["coordinateTransformations"][0]["scale"] for d in attributes["multiscales"][0]["datasets"]
    ]
    assert scales == [[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]]
    assert provenance(path, "half")["level"] == 1


def test_nothing_but_background(folder: Path, flows: Flows) -> None:
    path = stores.ome_image(folder / "image.zarr", np.full((150, 130), 7, np.uint16))
    report = flows.segment(path, segmenter=Threshold(), tiling=Tiling(tile=(64, 64), halo=8))
    assert report.n_objects == report.n_joined == 0
    labels = labels_of(path)
    assert labels.shape == (150, 130)
    assert not labels.any()
    validate_zarr_store(str(path / "labels" / "cells"))


def test_a_plain_array_gets_its_labels_beside_it(folder: Path, flows: Flows) -> None:
    mask = blobs((150, 130))
    stores.plain_array(folder / "scan.zarr", mask.astype("f4"), chunks=(64, 64))
    report = flows.segment(
        folder / "scan.zarr", segmenter=Threshold(), tiling=Tiling(tile=(64, 64))
    )
    assert report.labels_path == str(folder / "scan.labels.zarr" / "labels" / "cells")
    np.testing.assert_array_equal(labels_of(folder / "scan.labels.zarr"), components(mask))
    assert sorted(p.name for p in folder.iterdir()) == ["scan.labels.zarr", "scan.zarr"]


def test_not_a_number_is_background(folder: Path, flows: Flows) -> None:
    mask = blobs((150, 130))
    data = np.where(mask, HIGH, LOW).astype("f4")
    rng = np.random.default_rng(1)
    places = rng.random(data.shape)
    data[places < 0.05] = np.nan
    data[(places > 0.05) & (places < 0.1)] = -np.inf
    data[places > 0.95] = np.inf
    path = stores.ome_image(folder / "image.zarr", data, chunks=(64, 64))
    flows.segment(path, segmenter=Threshold(), tiling=Tiling(tile=(64, 64), halo=8))
    foreground = (mask & (places > 0.1)) | (places > 0.95)
    np.testing.assert_array_equal(labels_of(path), components(foreground))
