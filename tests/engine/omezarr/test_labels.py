"""Label images: written once, in the image's own format and place, and read back exactly."""

from __future__ import annotations

import json
import os
import shutil
import uuid
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stores
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from yaozarrs import validate_zarr_store

from cytopave.engine.boxes import Box
from cytopave.engine.errors import CorruptError, OutputError
from cytopave.engine.omezarr import pyramid
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.omezarr.labels import LabelTarget, label_target, open_labels
from cytopave.engine.tiling import Grid

DIGEST = "0123456789abcdef"


def target_of(path: Path | str, *, tile: tuple[int, ...], **kwargs: Any) -> LabelTarget:
    level, axes = kwargs.pop("level", 0), kwargs.pop("axes", None)
    image = open_image(path, level=level, axes=axes)
    return label_target(image, **{"name": "cells", "digest": DIGEST, "tile": tile} | kwargs)


def fill(target: LabelTarget, labels: np.ndarray, dtype: str = "uint32") -> None:
    """Write all of it, unpublished. ``labels`` has the target's axes."""
    target.create(dtype)
    for block in target.blocks():
        frame = labels[block.time] if "t" in target.axes else labels
        target.writer().write(block, frame[block.box.slices])
    target.writer().finish()


def nearest(labels: np.ndarray, target: LabelTarget) -> list[np.ndarray]:
    """All levels by the definition: each takes `sample_index` of the one before."""
    n = len(target.spatial_shape)
    levels = [labels]
    for index in pyramid.sampling(target.levels, n):
        lead = tuple(np.arange(s) for s in labels.shape[: labels.ndim - n])
        levels.append(levels[-1][np.ix_(*lead, *index)])
    return levels


def check_levels(target: LabelTarget, labels: np.ndarray) -> None:
    found = open_labels(target.url, target.name, storage_options=target.storage_options).levels
    wanted = nearest(labels, target)
    assert len(found) == len(wanted)
    for array, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(array[...]), want)


FORMATS = [
    ("yx", (150, 130), "0.4", None),
    ("yx", (150, 130), "0.5", (64, 64)),
    ("cyx", (2, 150, 130), "0.5", None),
    ("cyx", (2, 150, 130), "0.4", None),
    ("zyx", (5, 70, 90), "0.5", (2, 64, 64)),
    ("zyx", (5, 70, 90), "0.4", None),
    ("tczyx", (2, 2, 5, 70, 90), "0.5", None),
    ("tczyx", (2, 2, 5, 70, 90), "0.4", None),
]


@pytest.mark.parametrize(("axes", "shape", "version", "shards"), FORMATS)
def test_every_format(
    tmp_path: Path,
    axes: str,
    shape: tuple[int, ...],
    version: str,
    shards: tuple[int, ...] | None,
) -> None:
    chunks = tuple(16 if a in "yx" else 1 for a in axes)
    path = stores.ome_image(
        tmp_path / "i.zarr",
        stores.pixels(shape, "uint8"),
        axes=axes,
        version=version,
        n_levels=3,
        chunks=chunks,
        shards=shards and (1,) * (len(shape) - len(shards)) + shards,
        translate=True,
    )
    image = open_image(path)
    target = target_of(path, tile=(2, 32, 48)[-len(image.spatial_axes) :])
    assert LabelTarget.model_validate_json(target.model_dump_json()) == target
    labels = stores.random_labels([shape[axes.index(a)] for a in target.axes])
    fill(target, labels)
    assert stores.listed(path) == []
    target.publish({"segmenter": "test"})

    assert stores.listed(path) == ["cells"]
    check_levels(target, labels)
    opened = open_labels(path, "cells")
    for array, level in zip(opened.levels, image.levels, strict=True):
        assert array.dtype == "uint32"
        assert array.shape == image.of(target.axes, level.shape)
        assert array.metadata.zarr_format == image.zarr_format
    ome = opened.attributes.get("ome", opened.attributes)
    assert ome["image-label"]["source"] == {"image": "../../"}
    assert opened.attributes["cytopave"] == {"segmenter": "test", "digest": DIGEST}
    reread = open_image(path / "labels" / "cells")
    assert (reread.axes, reread.version) == (target.axes, version)
    assert reread.scale == image.of(target.axes, image.scale)
    assert reread.levels[2].translation == image.of(target.axes, image.levels[2].translation)
    assert reread.units == image.of(target.axes, image.units)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        validate_zarr_store(str(path))  # the image with its labels
    assert found == []
    assert sorted(os.listdir(path / "labels")) == sorted(
        ["cells", *(["zarr.json"] if version == "0.5" else [".zgroup", ".zattrs"])]
    )


@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize("tile", [(256, 256), (600, 600), (1024, 1024), (640, 320), (3000, 3000)])
def test_each_chunk_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, tile: tuple[int, int]
) -> None:
    monkeypatch.setattr(pyramid, "GROUP_PIXELS", 1 << 19)
    path = stores.ome_image(
        tmp_path / "i.zarr",
        np.zeros((1700, 1300), "u1"),
        version=version,
        n_levels=5,
        chunks=(512, 512),
    )
    target = target_of(path, tile=tile)
    labels = np.arange(1, 1700 * 1300 + 1, dtype="u4").reshape(1700, 1300)
    target.create("uint32")
    traffic = stores.Traffic(monkeypatch)
    for block in target.blocks():
        target.writer().write(block, labels[block.box.slices])
    reads = traffic.chunks(traffic.reads)
    assert reads.total() == 0  # no chunk is completed by reading it first
    target.writer().finish()
    writes = traffic.chunks(traffic.writes)
    assert set(writes.values()) == {1}
    spans = [level.shards or level.chunks for level in target.levels]
    assert len(writes) == sum(
        int(np.prod([-(-n // s) for n, s in zip(level.shape, span, strict=True)]))
        for level, span in zip(target.levels, spans, strict=True)
    )
    target.publish({})
    check_levels(target, labels)


def test_most_levels_are_written_directly(tmp_path: Path) -> None:
    zarr.create_array(
        str(tmp_path / "a.zarr"), shape=(65536, 65536), chunks=(1024, 1024), dtype="u2"
    )
    target = target_of(tmp_path / "a.zarr", tile=(1024, 1024))
    assert [level.shape[0] for level in target.levels] == [
        65536, 32768, 16384, 8192, 4096, 2048, 1024,
    ]  # fmt: skip
    assert target.direct == 5
    assert [level.chunks for level in target.levels[:6]] == [
        (512, 512), (512, 512), (512, 512), (256, 256), (128, 128), (512, 512),
    ]  # fmt: skip
    assert [level.shards for level in target.levels[:4]] == [
        (2048, 2048), (1024, 1024), None, None,
    ]  # fmt: skip


def test_blocks_are_whole_tiles_and_bounded(tmp_path: Path) -> None:
    zarr.create_array(
        str(tmp_path / "a.zarr"), shape=(3, 20001, 15000), chunks=(1, 1024, 1024), dtype="u2"
    )
    target = target_of(tmp_path / "a.zarr", tile=(1000, 750), axes="tyx")
    blocks = list(target.blocks())
    grid = Grid((20001, 15000), (1000, 750), (0, 0))
    edges = [set(e) for e in grid.edges]
    for block in blocks:
        for axis in range(2):
            assert {block.box.start[axis], block.box.stop[axis]} - {20001, 15000} <= edges[axis]
        assert block.box.size <= 1.5 * pyramid.GROUP_PIXELS
    one = [b.box for b in blocks if b.time == 1]
    assert len(one) * 3 == len(blocks)
    assert sum(b.size for b in one) == 20001 * 15000
    assert max(b.stop[0] - b.start[0] for b in one) % 1000 == 1  # the last row joins the others


def test_an_empty_image_stores_no_chunk(tmp_path: Path) -> None:
    path = stores.ome_image(tmp_path / "i.zarr", np.zeros((200, 200), "u1"), n_levels=2)
    target = target_of(path, tile=(64, 64))
    labels = np.zeros((200, 200), "u4")
    fill(target, labels)
    target.publish({})
    assert stores.chunk_files(path / "labels" / "cells" / "0") == []
    check_levels(target, labels)


def test_uint64(tmp_path: Path) -> None:
    path = stores.ome_image(tmp_path / "i.zarr", np.zeros((64, 64), "u1"))
    target = target_of(path, tile=(64, 64))
    labels = np.full((64, 64), 2**40, "u8")
    with pytest.raises(ValueError, match="do not all fit uint32"):
        fill(target, labels, "uint32")
    fill(target, labels, "uint64")
    target.publish({})
    check_levels(target, labels)


@pytest.mark.parametrize(
    "bad", [np.full((64, 64), -1), np.zeros((64, 64)), np.zeros((64, 63), int)]
)
def test_bad_pixels_are_bugs(tmp_path: Path, bad: np.ndarray) -> None:
    path = stores.ome_image(tmp_path / "i.zarr", np.zeros((64, 64), "u1"))
    target = target_of(path, tile=(64, 64))
    target.create("uint32")
    (block,) = target.blocks()
    with pytest.raises(ValueError, match="labels of"):
        target.writer().write(block, bad)
    with pytest.raises(ValueError, match="not int32"):
        target.create("int32")


def test_a_coarser_level_is_segmented(tmp_path: Path) -> None:
    path = stores.ome_image(tmp_path / "i.zarr", np.zeros((200, 180), "u1"), n_levels=4)
    target = target_of(path, tile=(32, 32), level=2)
    labels = stores.random_labels((50, 45))
    fill(target, labels)
    target.publish({})
    check_levels(target, labels)
    image, found = open_image(path), open_image(path / "labels" / "cells")
    # The image's levels 2 and 3, and two more: as many as the image has.
    assert [v.shape for v in found.levels] == [(50, 45), (25, 23), (13, 12), (7, 6)]
    assert found.levels[0].scale == image.levels[2].scale
    assert found.levels[3].scale == tuple(4 * s for s in image.levels[3].scale)
    validate_zarr_store(str(path))


def test_levels_that_differ_in_time(tmp_path: Path) -> None:
    path = stores.ome_image(
        tmp_path / "i.zarr", np.zeros((4, 64, 64), "u1"), axes="tyx", n_levels=2
    )
    stores.plain_array(path / "s1", np.zeros((2, 32, 32), "u1"))
    with pytest.raises(OutputError, match="differ in their number of time points"):
        target_of(path, tile=(32, 32))


def test_a_single_level_gets_overviews(tmp_path: Path) -> None:
    path = stores.ome_image(tmp_path / "i.zarr", np.zeros((3, 2100, 900), "u1"), chunks=(1, 99, 99))
    target = target_of(path, tile=(3, 512, 512))
    assert [v.shape for v in target.levels] == [(3, 2100, 900), (3, 1050, 450), (3, 525, 225)]
    assert target.levels[2].scale == (0.5, 2.0, 2.0)


def test_levels_by_an_odd_factor(tmp_path: Path) -> None:
    path = tmp_path / "i.zarr"
    content = stores.attributes("yx", version="0.5", factors=[1, 2.5], translate=True)
    stores.group(path, content)
    stores.plain_array(path / "s0", np.zeros((100, 50), "u1"))
    stores.plain_array(path / "s1", np.zeros((40, 20), "u1"))
    target = target_of(path, tile=(16, 16))
    labels = stores.random_labels((100, 50))
    fill(target, labels)
    target.publish({})
    check_levels(target, labels)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_plain_arrays_get_a_store_beside(tmp_path: Path, zarr_format: int) -> None:
    stores.plain_array(tmp_path / "scan.zarr", np.zeros((2, 40, 50), "u1"), zarr_format=zarr_format)
    target = target_of(tmp_path / "scan.zarr", tile=(32, 32), axes="cyx")
    assert target.url == str(tmp_path / "scan.labels.zarr")
    assert not Path(target.url).exists()  # nothing yet
    labels = stores.random_labels((40, 50))
    fill(target, labels)
    target.publish({})
    check_levels(target, labels)
    opened = open_labels(target.url, "cells")
    ome = opened.attributes.get("ome", opened.attributes)
    assert ome["image-label"].get("source") is None  # it is elsewhere
    assert target.version == {2: "0.4", 3: "0.5"}[zarr_format]
    found: Any = zarr.open_group(target.url, mode="r")["labels/cells/0"]
    assert found.shape == (40, 50)


def test_output_elsewhere(tmp_path: Path) -> None:
    path = stores.ome_image(tmp_path / "i.zarr", np.zeros((40, 50), "u1"), version="0.4")
    target = target_of(path, tile=(32, 32), output=tmp_path / "deep" / "out.zarr")
    assert not (tmp_path / "deep").exists()
    labels = stores.random_labels((40, 50))
    fill(target, labels)
    target.publish({})
    check_levels(target, labels)
    assert not (path / "labels").exists()
    assert json.loads((tmp_path / "deep/out.zarr/.zgroup").read_text()) == {"zarr_format": 2}
    assert target_of(path, tile=(32, 32), output=path).source == "../../"


def test_memory_store(tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}/i.zarr"
    stores.group(url, stores.attributes("yx", version="0.5", n_levels=2))
    stores.plain_array(f"{url}/s0", np.zeros((150, 130), "u1"))
    stores.plain_array(f"{url}/s1", np.zeros((75, 65), "u1"))
    for seed in range(2):  # the second replaces the first
        target = target_of(url, tile=(64, 64), overwrite=bool(seed))
        labels = stores.random_labels((150, 130), seed=seed)
        fill(target, labels)
        target.publish({"run": seed})
        check_levels(target, labels)
        assert open_labels(url, "cells").attributes["cytopave"]["run"] == seed
    with pytest.raises(OutputError, match="already in"):
        target_of(url, tile=(64, 64))
    target.publish({})  # again, with nothing left to do
    assert not target.staging.exists()
    other = target_of(url, tile=(64, 64), name="nuclei")
    fill(other, labels)
    other.publish({})
    assert {"cells", "nuclei"} == set(zarr.open_group(f"{url}/labels", mode="r").group_keys())


class TestRefusals:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return stores.ome_image(tmp_path / "i.zarr", np.zeros((40, 50), "u1"))

    def refuse(self, path: Path, message: str, **kwargs: Any) -> None:
        before = sorted(path.parent.rglob("*"))
        with pytest.raises(OutputError, match=message) as caught:
            target_of(path, tile=(32, 32), **kwargs)
        assert "\n" not in str(caught.value)
        assert sorted(path.parent.rglob("*")) == before

    @pytest.mark.parametrize(
        "name", ["", "a/b", "..", ".cells", "a\\b", " cells", "__x", 'a"b', "a\nb"]
    )
    def test_names(self, path: Path, name: str) -> None:
        self.refuse(path, "cannot name a label image", name=name)

    def test_names_that_zarr_or_the_file_system_cannot_take(self, path: Path) -> None:
        self.refuse(path, "zarr's own metadata", name="zarr.json")
        self.refuse(path, "is 200 bytes long", name="ä" * 100)

    @pytest.mark.parametrize("version", ["0.4", "0.5"])
    def test_a_name_that_is_taken(self, tmp_path: Path, version: str) -> None:
        path = stores.ome_image(tmp_path / "j.zarr", np.zeros((40, 50), "u1"), version=version)
        target = target_of(path, tile=(32, 32))
        fill(target, stores.random_labels((40, 50)))
        target.publish({})
        message = "'cells' is already in .*j.zarr: choose another name, or replace it"
        self.refuse(path, message)
        self.refuse(path, message, digest="another run")
        assert target_of(path, tile=(32, 32), name="nuclei").name == "nuclei"
        assert target_of(path, tile=(32, 32), overwrite=True).overwrite

    def test_an_unlisted_group_of_somebody_else(self, path: Path) -> None:
        stores.group(path / "labels" / "cells", {})
        self.refuse(path, "'cells' is already in")

    def test_an_unpublished_one_of_ours_is_no_obstacle(self, path: Path) -> None:
        fill(target_of(path, tile=(32, 32)), stores.random_labels((40, 50)))
        target_of(path, tile=(32, 32)).publish({})
        assert stores.listed(path) == ["cells"]

    def test_unwritable(self, path: Path) -> None:
        self.refuse(path, "cannot be written to /proc/out.zarr/labels", output="/proc/out.zarr")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_read_only(self, path: Path) -> None:
        path.chmod(0o555)
        self.refuse(path, "cannot be written to")

    def test_read_only_remote(self, path: Path, tmp_path: Path) -> None:
        shutil.make_archive(str(tmp_path / "i"), "zip", path)
        url = f"zip://::{tmp_path / 'i.zip'}"
        image = open_image(url)
        assert image.read(Box.of((40, 50))).shape == (40, 50)
        with pytest.raises(OutputError, match="cannot be written to"):
            label_target(image, name="cells", tile=(32, 32), digest=DIGEST)

    def test_outputs_that_cannot_hold_labels(self, path: Path, tmp_path: Path) -> None:
        stores.plain_array(tmp_path / "a.zarr", np.zeros((4, 4)))
        stores.group(tmp_path / "v2.zarr", {}, version="0.4")
        (tmp_path / "file").write_text("")
        self.refuse(path, "is a zarr array, which cannot", output=tmp_path / "a.zarr")
        self.refuse(path, "a store of zarr format 2, the image", output=tmp_path / "v2.zarr")
        self.refuse(path, "is a file: give a folder", output=tmp_path / "file")

    def test_open_labels(self, path: Path) -> None:
        with pytest.raises(OutputError, match="no label image 'cells': there is none"):
            open_labels(path, "cells")


def test_a_failing_disk_is_one_sentence(tmp_path: Path) -> None:
    path = stores.ome_image(tmp_path / "i.zarr", np.zeros((64, 64), "u1"))
    target = target_of(path, tile=(64, 64))
    target.create("uint32")
    (target.staging.local or path).joinpath("0", "c").write_text("in the way")
    (block,) = target.blocks()
    with pytest.raises(OutputError, match=r"'cells' cannot be written to .*i\.zarr: "):
        target.writer().write(block, np.ones((64, 64), "u4"))


class TestResume:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return stores.ome_image(tmp_path / "i.zarr", np.zeros((2048, 1024), "u1"), n_levels=2)

    def test_the_same_layout_keeps_its_pixels(self, path: Path) -> None:
        labels = stores.random_labels((2048, 1024), size=100)
        first = target_of(path, tile=(1024, 1024))
        first.create("uint32")
        done, *rest = first.blocks()
        first.writer().write(done, labels[done.box.slices])
        again = target_of(path, tile=(1024, 1024))
        again.create("uint32")
        for block in rest:
            again.writer().write(block, labels[block.box.slices])
        again.writer().finish()
        again.publish({})
        check_levels(again, labels)

    @pytest.mark.parametrize("change", ["dtype", "tile"])
    def test_another_layout_starts_anew(self, path: Path, change: str) -> None:
        fill(target_of(path, tile=(1024, 1024)), np.ones((2048, 1024), "u4"))
        tile = (600, 600) if change == "tile" else (1024, 1024)
        target = target_of(path, tile=tile)
        target.create("uint64" if change == "dtype" else "uint32")
        target.publish({})
        check_levels(target, np.zeros((2048, 1024), "u4"))

    def test_a_block_is_written_again(self, path: Path) -> None:
        target = target_of(path, tile=(1024, 1024))
        fill(target, np.ones((2048, 1024), "u4"))
        labels = np.zeros((2048, 1024), "u4")  # chunks that were stored are none now
        fill(target, labels)
        target.publish({})
        check_levels(target, labels)

    def test_a_creation_cut_short_is_completed(self, path: Path) -> None:
        target = target_of(path, tile=(1024, 1024))
        target.create("uint32")
        assert target.staging.local
        (target.staging.local / "1" / "zarr.json").unlink()
        (target.staging.local / "zarr.json").unlink()
        labels = stores.random_labels((2048, 1024), size=100)
        fill(target, labels)
        target.publish({})
        check_levels(target, labels)

    def test_what_is_not_valid_is_not_published(self, path: Path) -> None:
        target = target_of(path, tile=(1024, 1024))
        fill(target, np.ones((2048, 1024), "u4"))
        shutil.rmtree(target.staging.local / "1")  # type: ignore[operator]
        with pytest.raises(CorruptError, match="lack the array 1"):
            target.publish({})
        assert stores.listed(path) == []
        stores.plain_array(target.staging.local / "1", np.ones((1024, 512)))  # type: ignore[operator]
        with pytest.raises(CorruptError, match="non-integer dtype"):
            target.publish({})
        assert stores.listed(path) == []


@settings(max_examples=20, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 6), st.integers(1, 90), st.integers(1, 90)),
    tile=st.tuples(st.integers(1, 8), st.integers(3, 100), st.integers(3, 100)),
    n_levels=st.integers(1, 4),
    axes=st.sampled_from(["zyx", "tyx"]),
    version=st.sampled_from(["0.4", "0.5"]),
)
def test_any_shape_and_tile(
    tmp_path_factory: pytest.TempPathFactory,
    shape: tuple[int, ...],
    tile: tuple[int, ...],
    n_levels: int,
    axes: str,
    version: str,
) -> None:
    path = tmp_path_factory.mktemp("any") / "i.zarr"
    stores.ome_image(path, np.zeros(shape, "u1"), axes=axes, version=version, n_levels=n_levels)
    labels = stores.random_labels(shape, size=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pyramid, "CHUNK", 16)
        patch.setattr(pyramid, "_SMALLEST", 4)
        patch.setattr(pyramid, "UNIT_PIXELS", 3000)
        patch.setattr(pyramid, "GROUP_PIXELS", 1000)
        patch.setattr(pyramid, "OVERVIEW", 40)
        target = target_of(path, tile=tile if axes == "zyx" else tile[1:])
        fill(target, labels)
        target.publish({})
    check_levels(target, labels)
    ids = set(np.unique(labels))
    for array in open_labels(path, "cells").levels:
        assert set(np.unique(np.asarray(array[...]))) <= ids
