"""Every format reads back exactly; everything else is refused with the sentence that helps."""

from __future__ import annotations

import json
import os
import pickle
import re
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import stores
import zarr
import zarr.codecs
from hypothesis import given, settings
from hypothesis import strategies as st

from cytopave.engine.boxes import Box
from cytopave.engine.errors import CorruptError, ImageError, MissingExtraError
from cytopave.engine.omezarr.image import Image, open_image

SHAPES = {"yx": (37, 53), "cyx": (3, 37, 53), "zyx": (5, 37, 53), "tczyx": (2, 3, 4, 37, 53)}


def expected(data: np.ndarray, axes: str, time: int, channels: tuple[int, ...]) -> np.ndarray:
    """What reading the whole image must give."""
    if "t" in axes:
        data = np.take(data, time, axis=axes.index("t"))
        axes = axes.replace("t", "")
    if "c" in axes:
        data = np.moveaxis(data, axes.index("c"), 0)[list(channels)]
        data = data if len(channels) > 1 else data[0]
    return data


@pytest.mark.parametrize("dtype", ["uint8", "uint16", ">u2", "int16", "float32", ">f4", "bool"])
@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize("axes", SHAPES)
def test_ome_zarr_reads_back(tmp_path: Path, axes: str, version: str, dtype: str) -> None:
    data = stores.pixels(SHAPES[axes], np.dtype(dtype).newbyteorder("="))
    chunks = tuple(16 if a in "yx" else 1 for a in axes)
    shards = tuple(32 if a in "yx" else 2 for a in axes) if version == "0.5" else None
    stores.ome_image(
        tmp_path / "i.zarr",
        data,
        axes=axes,
        version=version,
        chunks=chunks,
        shards=shards,
        dtype=dtype,
    )
    image = open_image(tmp_path / "i.zarr")
    assert (image.version, image.axes, image.shape) == (version, axes, data.shape)
    assert (image.chunks, image.shards) == (chunks, shards)
    assert image.dtype == np.dtype(dtype).name
    time, channels = image.n_times - 1, image.channel_indices([2, 0] if "c" in axes else None)
    whole = image.read(Box.of(image.spatial_shape), time=time, channels=channels)
    assert whole.dtype.isnative
    np.testing.assert_array_equal(whole, expected(data, axes, time, channels))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("shape", [(9, 8), (3, 9, 8), (2, 3, 9, 8), (2, 2, 3, 9, 8)])
def test_plain_array_axes_by_ndim(tmp_path: Path, shape: tuple[int, ...], zarr_format: int) -> None:
    data = stores.pixels(shape)
    stores.plain_array(tmp_path / "a.zarr", data, zarr_format=zarr_format)
    image = open_image(tmp_path / "a.zarr")
    assert image.axes == stores.BY_NDIM[len(shape)]
    assert (image.version, image.zarr_format, len(image.levels)) == (None, zarr_format, 1)
    got = image.read(Box.of(image.spatial_shape), channels=image.channel_indices())
    np.testing.assert_array_equal(got, data[0] if len(shape) == 5 else data)


@pytest.mark.parametrize("axes", ["yxc", "zcyx", "ctyx", "tyx", "cyx"])
def test_plain_array_axes_by_argument(tmp_path: Path, axes: str) -> None:
    shape = tuple({"t": 2, "c": 3, "z": 4, "y": 9, "x": 8}[a] for a in axes)
    data = stores.pixels(shape)
    stores.plain_array(tmp_path / "a.zarr", data)
    image = open_image(tmp_path / "a.zarr", axes=axes.upper())
    channels = image.channel_indices()
    got = image.read(Box.of(image.spatial_shape), channels=channels)
    np.testing.assert_array_equal(got, expected(data, axes, 0, channels))


def test_plain_array_axes_by_dimension_names(tmp_path: Path) -> None:
    stores.plain_array(
        tmp_path / "a.zarr", stores.pixels((2, 9, 8)), dimension_names=["C", "Y", "X"]
    )
    stores.plain_array(
        tmp_path / "b.zarr", stores.pixels((2, 9, 8)), dimension_names=["wells", "Y", "X"]
    )
    assert open_image(tmp_path / "a.zarr").axes == "cyx"
    assert open_image(tmp_path / "b.zarr").axes == "zyx"
    assert open_image(tmp_path / "a.zarr", axes="zyx").axes == "zyx"


def test_levels(tmp_path: Path) -> None:
    data = stores.pixels((2, 65, 40))
    stores.ome_image(tmp_path / "i.zarr", data, axes="cyx", n_levels=3, translate=True)
    image = open_image(tmp_path / "i.zarr", level=1)
    assert [v.shape for v in image.levels] == [(2, 65, 40), (2, 33, 20), (2, 17, 10)]
    assert (image.scale, image.translation) == ((1.0, 1.0, 1.0), (0.0, 0.25, 0.25))
    assert image.units == (None, "micrometer", "micrometer")
    box = Box((3, 4), (30, 20))
    np.testing.assert_array_equal(image.read(box, channels=(1,)), data[1, ::2, ::2][box.slices])
    coarsest = image.at_level(2)
    assert (coarsest.level, coarsest.spatial_shape) == (2, (17, 10))
    with pytest.raises(ImageError, match=r"no level 3: its levels are 0 \(2, 65, 40\), 1 "):
        open_image(tmp_path / "i.zarr", level=3)
    with pytest.raises(ImageError, match="no level -1"):
        open_image(tmp_path / "i.zarr", level=-1)


def test_transformations_of_the_multiscale_are_applied_last(tmp_path: Path) -> None:
    attributes = stores.attributes("yx", version="0.4", translate=True, factors=[3])
    attributes["multiscales"][0]["coordinateTransformations"] = [
        {"type": "scale", "scale": [10.0, 100.0]},
        {"type": "translation", "translation": [1.0, 2.0]},
    ]
    stores.group(tmp_path / "i.zarr", attributes, version="0.4")
    stores.plain_array(tmp_path / "i.zarr/s0", stores.pixels((4, 4)), zarr_format=2)
    image = open_image(tmp_path / "i.zarr")
    assert image.scale == (15.0, 150.0)
    assert image.translation == (0.5 * 10 + 1, 0.5 * 100 + 2)


def test_memory_url() -> None:
    url = f"memory://{uuid.uuid4().hex}/i.zarr"
    data = stores.pixels((2, 30, 40))
    stores.group(url, stores.attributes("cyx", version="0.5"))
    stores.plain_array(f"{url}/s0", data, chunks=(1, 16, 16), shards=(1, 32, 32))
    image = open_image(url)
    assert image.url == url
    got = image.read(Box((1, 2), (30, 40)), channels=(0, 1))
    np.testing.assert_array_equal(got, data[:, 1:, 2:])
    before = image.fingerprint()
    assert before == open_image(url).fingerprint()
    zarr.open_array(f"{url}/s0", mode="r+")[0] = data[1]
    assert image.fingerprint() != before


def test_local_urls_are_one_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores.plain_array(tmp_path / "a b.zarr", stores.pixels((4, 4)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    urls = ["a b.zarr", "./x/../a b.zarr/", "~/a b.zarr", (tmp_path / "a b.zarr").as_uri()]
    assert {open_image(u).url for u in urls} == {str(tmp_path / "a b.zarr")}


def test_an_image_is_plain_values(tmp_path: Path) -> None:
    stores.ome_image(tmp_path / "i.zarr", stores.pixels((2, 20, 20)), axes="cyx", n_levels=2)
    image = open_image(tmp_path / "i.zarr")
    image.read(Box.of((20, 20)))
    assert pickle.loads(pickle.dumps(image)) == image
    assert len(pickle.dumps(image)) < 2000
    fields = json.loads(json.dumps(asdict(image)))
    assert fields["shape"] == [2, 20, 20]


def test_a_replaced_image_is_read_anew(tmp_path: Path) -> None:
    first, second = stores.pixels((20, 20), seed=1), stores.pixels((20, 20), seed=2)
    stores.plain_array(tmp_path / "a.zarr", first)
    image = open_image(tmp_path / "a.zarr")
    np.testing.assert_array_equal(image.read(Box.of((20, 20))), first)
    stores.plain_array(tmp_path / "a.zarr", second, compressors=None)
    np.testing.assert_array_equal(image.read(Box.of((20, 20))), second)


class TestChannels:
    @pytest.fixture
    def image(self, tmp_path: Path) -> Image:
        data = stores.pixels((4, 8, 8))
        stores.ome_image(tmp_path / "i.zarr", data, axes="cyx", channels=["DAPI", "GFP", "GFP"])
        return open_image(tmp_path / "i.zarr")

    def test_selection(self, image: Image) -> None:
        assert image.channels == ("DAPI", "GFP", "GFP", "3")
        assert image.channel_indices(None) == (0, 1, 2, 3)
        assert image.channel_indices([3, "DAPI", "1"]) == (3, 0, 1)

    @pytest.mark.parametrize(
        ("selection", "message"),
        [
            (["RFP"], r"no channel 'RFP' in .*: its channels are 0 \(DAPI\), 1 \(GFP\).*, 3$"),
            ([4], "no channel 4"),
            ([-1], "no channel -1"),
            (["GFP"], "several channels are called 'GFP'"),
            ([0, "DAPI"], "each only once"),
            ([], "name at least one channel"),
        ],
    )
    def test_refusals(self, image: Image, selection: list[Any], message: str) -> None:
        with pytest.raises(ImageError, match=message):
            image.channel_indices(selection)

    def test_without_c(self, tmp_path: Path) -> None:
        stores.plain_array(tmp_path / "a.zarr", stores.pixels((8, 8)))
        image = open_image(tmp_path / "a.zarr")
        assert image.channels == ()
        assert image.channel_indices() == image.channel_indices([0]) == ()
        with pytest.raises(ImageError, match="no channel axis"):
            image.channel_indices([1])

    def test_one_channel_has_no_axis(self, tmp_path: Path) -> None:
        data = stores.pixels((1, 8, 8))
        stores.ome_image(tmp_path / "i.zarr", data, axes="cyx")
        image = open_image(tmp_path / "i.zarr")
        box = Box.of((8, 8))
        np.testing.assert_array_equal(image.read(box, channels=(0,)), data[0])
        np.testing.assert_array_equal(image.read(box), data[0])


def group_of(path: Path, **attributes: Any) -> Path:
    stores.group(path, attributes, version="0.4")
    return path


class TestRefusals:
    def refuse(self, url: object, message: str, **kwargs: Any) -> None:
        with pytest.raises(ImageError, match=message) as caught:
            open_image(str(url), **kwargs)
        assert "\n" not in str(caught.value)

    def test_nothing_there(self, tmp_path: Path) -> None:
        self.refuse(tmp_path / "no.zarr", r"no image at .*no\.zarr: no such file or folder")
        self.refuse("memory://nowhere/no.zarr", "no such file or folder")

    def test_not_zarr(self, tmp_path: Path) -> None:
        (tmp_path / "scan.tif").write_bytes(b"II*\0")
        (tmp_path / "notes.txt").write_text("no image")
        (tmp_path / "empty").mkdir()
        self.refuse(
            tmp_path / "scan.tif", "is a file, not a zarr image: convert it first, to scan.zarr"
        )
        self.refuse(tmp_path / "notes.txt", "is a file, not a zarr image")
        self.refuse(tmp_path / "empty", "is a folder, but not a zarr image")
        self.refuse(tmp_path / "notes.txt" / "x", "no such file or folder")

    def test_broken_metadata(self, tmp_path: Path) -> None:
        path = stores.ome_image(tmp_path / "i.zarr", stores.pixels((8, 8)))
        (path / "s0" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "array"}')
        self.refuse(path, "is not an array that can be read")
        (path / "zarr.json").write_text('{"zarr_format": 3,')
        self.refuse(path, "is not valid JSON")

    def test_missing_array(self, tmp_path: Path) -> None:
        stores.group(tmp_path / "i.zarr", stores.attributes("yx", version="0.5"))
        self.refuse(tmp_path / "i.zarr", "s0 is not an array that can be read")

    def test_plate(self, tmp_path: Path) -> None:
        plate = {"version": "0.4", "wells": [{"path": "A/1"}, {"path": "B/2"}]}
        path = group_of(tmp_path / "p.zarr", plate=plate)
        self.refuse(path, r"a plate of 2 wells: name one of its images, e\.g\. .*p\.zarr/A/1/0, ")

    def test_well(self, tmp_path: Path) -> None:
        path = group_of(tmp_path / "w.zarr", well={"images": [{"path": "0"}, {"path": "1"}]})
        self.refuse(path, r"a well of a plate: name one of its images, e\.g\. .*w\.zarr/0, ")

    def test_series(self, tmp_path: Path) -> None:
        path = group_of(tmp_path / "s.zarr", **{"bioformats2raw.layout": 3})
        stores.ome_image(path / "0", stores.pixels((8, 8)), version="0.4")
        stores.ome_image(path / "1", stores.pixels((8, 8)), version="0.4")
        self.refuse(path, r"a collection of 2 images: name one of them, e\.g\. .*s\.zarr/0, ")
        group_of(path / "OME", series=["1"])
        self.refuse(path, r"a collection of 1 images: .*s\.zarr/1$")

    def test_group(self, tmp_path: Path) -> None:
        path = group_of(tmp_path / "g.zarr")
        self.refuse(path, "a zarr group that holds no image")
        stores.ome_image(path / "cells", stores.pixels((8, 8)), version="0.4")
        self.refuse(path, r"without multiscales: name an image in it, e\.g\. .*g\.zarr/cells$")

    @pytest.mark.parametrize(("version", "found"), [("0.3", "0.3"), ("0.6", "0.6")])
    def test_other_versions(self, tmp_path: Path, version: str, found: str) -> None:
        content = stores.attributes("yx", version="0.4")
        content["multiscales"][0]["version"] = version
        stores.group(tmp_path / "i.zarr", content, version="0.4")
        self.refuse(tmp_path / "i.zarr", f"OME-Zarr {found}, which cannot be read: convert it")

    def test_invalid_metadata(self, tmp_path: Path) -> None:
        content = stores.attributes("yx", version="0.5")
        del content["ome"]["multiscales"][0]["datasets"][0]["coordinateTransformations"]
        stores.group(tmp_path / "i.zarr", content)
        self.refuse(tmp_path / "i.zarr", r"not valid OME-Zarr 0\.5: multiscales\.0\.datasets\.0")

    def test_a_link_to_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "i.zarr").symlink_to(tmp_path / "gone.zarr")
        self.refuse(tmp_path / "i.zarr", r"is a link to .*gone\.zarr, which is not there")

    @pytest.mark.parametrize("multiscales", [{"a": 1}, ["image"], "image"])
    def test_multiscales_that_are_no_list_of_images(self, tmp_path: Path, multiscales: Any) -> None:
        stores.group(tmp_path / "i.zarr", {"ome": {"version": "0.5", "multiscales": multiscales}})
        self.refuse(tmp_path / "i.zarr", "not valid OME-Zarr: its multiscales are no list")

    @pytest.mark.parametrize("size", [0.0, -1.0, float("inf")])
    def test_pixels_without_a_size(self, tmp_path: Path, size: float) -> None:
        content = stores.attributes("yx", version="0.5")
        dataset = content["ome"]["multiscales"][0]["datasets"][0]
        dataset["coordinateTransformations"] = [{"type": "scale", "scale": [1.0, size]}]
        stores.group(tmp_path / "i.zarr", content)
        self.refuse(tmp_path / "i.zarr", "must be positive")

    @pytest.mark.parametrize("colours", [3, 4])
    def test_one_plane_in_colours_or_many_narrow_ones(self, tmp_path: Path, colours: int) -> None:
        pixels = stores.pixels((20, 30, colours))
        stores.plain_array(tmp_path / "a.zarr", pixels)
        self.refuse(tmp_path / "a.zarr", r"name its axes, yxc or zyx \(--axes\)")
        plane = open_image(tmp_path / "a.zarr", axes="yxc")
        assert plane.spatial_shape == (20, 30)
        np.testing.assert_array_equal(plane.read(Box.of((20, 30)))[1], pixels[..., 1])
        assert open_image(tmp_path / "a.zarr", axes="zyx").spatial_shape == (20, 30, colours)

    @pytest.mark.parametrize("version", ["0.4", "0.5"])
    def test_the_array_of_a_level(self, tmp_path: Path, version: str) -> None:
        path = stores.ome_image(tmp_path / "i.zarr", stores.pixels((8, 8)), version=version)
        self.refuse(path / "s0", r"is level 0 of the image .*i\.zarr: name the image.*--level")

    @pytest.mark.parametrize("dtype", ["complex64", "U5"])
    def test_dtypes(self, tmp_path: Path, dtype: str) -> None:
        zarr.create_array(
            str(tmp_path / "a.zarr"), shape=(4, 4), chunks=(4, 4), dtype=dtype, zarr_format=2
        )
        self.refuse(tmp_path / "a.zarr", "only integers, floats and booleans are pixels")

    @pytest.mark.parametrize("axes", ["yx", "zzyx", "cyxz", "abyx", "tczy", "cyx?"])
    def test_axes(self, tmp_path: Path, axes: str) -> None:
        stores.plain_array(tmp_path / "a.zarr", stores.pixels((2, 2, 4, 4)))
        message = "has 4 axes, but" if len(axes) != 4 else "cannot be used: give each axis"
        self.refuse(tmp_path / "a.zarr", message, axes=axes)

    def test_axes_of_an_ome_image_are_its_own(self, tmp_path: Path) -> None:
        path = stores.ome_image(tmp_path / "i.zarr", stores.pixels((3, 8, 8)), axes="cyx")
        assert open_image(path, axes="cyx").axes == "cyx"
        self.refuse(path, "are 'cyx' by its metadata, not 'zyx'", axes="zyx")

    def test_one_axis(self, tmp_path: Path) -> None:
        stores.plain_array(tmp_path / "a.zarr", stores.pixels((4,)))
        self.refuse(tmp_path / "a.zarr", "has 1 axes")

    def test_empty(self, tmp_path: Path) -> None:
        zarr.create_array(str(tmp_path / "a.zarr"), shape=(0, 4), chunks=(4, 4), dtype="u1")
        self.refuse(tmp_path / "a.zarr", r"is empty: its shape is \(0, 4\)")

    def test_protocols(self) -> None:
        self.refuse("warp://x/y.zarr", "Protocol not known: warp")
        with pytest.raises(MissingExtraError, match="gcsfs"):
            open_image("gs://bucket/y.zarr")


class TestDamage:
    @pytest.mark.parametrize("damage", ["truncated", "emptied", "overwritten"])
    @pytest.mark.parametrize(
        ("version", "sharded"), [("0.4", False), ("0.5", False), ("0.5", True)]
    )
    def test_is_named(self, tmp_path: Path, version: str, damage: str, sharded: bool) -> None:
        path = stores.ome_image(
            tmp_path / "i.zarr",
            stores.pixels((64, 64)),
            version=version,
            chunks=(16, 16),
            shards=(32, 32) if sharded else None,
        )
        file = stores.chunk_files(path / "s0")[0]
        raw = file.read_bytes()
        content = {
            "truncated": raw[: len(raw) // 2],
            "emptied": b"",
            "overwritten": b"\x55" * len(raw),
        }
        file.write_bytes(content[damage])
        image = open_image(path)
        name = re.escape(str(file.relative_to(path)))
        where = rf"i\.zarr, file {name}, region y=0:10, x=0:12, is"
        with pytest.raises(CorruptError, match=where):
            image.read(Box((0, 0), (10, 12)))
        # Of all that is read, the chunk that it was.
        with pytest.raises(CorruptError, match=rf"file {name}, region y=0:16, x=0:16, is"):
            image.read(Box.of((64, 64)))
        assert image.read(Box((32, 32), (64, 64))).any()

    @pytest.mark.parametrize("cut", [1, 30, 8000, 8200])
    @pytest.mark.parametrize("codec", ["zlib", "gzip", "lz4", "lzma", "blosc", "zstd"])
    def test_is_noticed_in_every_codec(self, tmp_path: Path, codec: str, cut: int) -> None:
        compressor = numcodecs.get_codec({"id": codec})
        data = stores.pixels((64, 64))  # 8192 bytes that cannot be compressed
        stores.plain_array(tmp_path / "a.zarr", data, zarr_format=2, compressors=[compressor])
        image = open_image(tmp_path / "a.zarr")
        np.testing.assert_array_equal(image.read(Box.of((64, 64))), data)
        (file,) = stores.chunk_files(tmp_path / "a.zarr")
        file.write_bytes(file.read_bytes()[:-cut])
        with pytest.raises(CorruptError, match="truncated or damaged"):
            image.read(Box.of((64, 64)))

    def test_is_noticed_in_blosc_of_format_3(self, tmp_path: Path) -> None:
        stores.plain_array(
            tmp_path / "a.zarr", stores.pixels((64, 64)), compressors=zarr.codecs.BloscCodec()
        )
        (file,) = stores.chunk_files(tmp_path / "a.zarr")
        file.write_bytes(file.read_bytes()[:-30])
        with pytest.raises(CorruptError, match=r"has \d+ of \d+ bytes"):
            open_image(tmp_path / "a.zarr").read(Box.of((64, 64)))

    def test_a_missing_chunk_holds_the_fill_value(self, tmp_path: Path) -> None:
        data = stores.pixels((32, 32)) | 1
        stores.plain_array(tmp_path / "a.zarr", data, chunks=(16, 16), fill_value=7)
        stores.chunk_files(tmp_path / "a.zarr")[0].unlink()
        got = open_image(tmp_path / "a.zarr").read(Box.of((32, 32)))
        assert (got[:16, :16] == 7).all()
        np.testing.assert_array_equal(got[16:], data[16:])

    def test_an_unreadable_store_is_not_damage(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stores.plain_array(tmp_path / "a.zarr", stores.pixels((8, 8)))
        image = open_image(tmp_path / "a.zarr")
        file = stores.chunk_files(tmp_path / "a.zarr")[0]
        file.unlink()
        file.symlink_to(file)  # opening it fails with ELOOP
        with pytest.raises(OSError, match="symbolic links"):
            image.read(Box.of((8, 8)))


class TestFingerprint:
    def test_changes_with_the_pixels(self, tmp_path: Path) -> None:
        path = stores.ome_image(tmp_path / "i.zarr", stores.pixels((32, 32)), chunks=(16, 16))
        before = open_image(path).fingerprint()
        assert before == open_image(path).fingerprint()
        file = stores.chunk_files(path / "s0")[2]
        raw = file.read_bytes()
        file.write_bytes(raw)
        os.utime(file, ns=(1, 1))
        touched = open_image(path).fingerprint()
        file.unlink()
        assert len({before, touched, open_image(path).fingerprint()}) == 3

    def test_is_that_of_the_level_alone(self, tmp_path: Path) -> None:
        path = stores.ome_image(tmp_path / "i.zarr", stores.pixels((32, 32)), n_levels=2)
        fine, coarse = open_image(path), open_image(path, level=1)
        before = fine.fingerprint()
        assert before != coarse.fingerprint()
        stores.plain_array(path / "s1", stores.pixels((16, 16), seed=1))
        (path / "labels").mkdir()
        array = zarr.open_array(str(path / "s0"), mode="r+")
        array.attrs["note"] = "attributes are not pixels"
        assert fine.fingerprint() == before

    def test_changes_with_the_metadata(self, tmp_path: Path) -> None:
        stores.plain_array(tmp_path / "a.zarr", np.zeros((8, 8), "u2"), fill_value=0)
        before = open_image(tmp_path / "a.zarr").fingerprint()
        stores.plain_array(tmp_path / "a.zarr", np.ones((8, 8), "u2"), fill_value=1)
        assert stores.chunk_files(tmp_path / "a.zarr") == []
        assert open_image(tmp_path / "a.zarr").fingerprint() != before


def test_a_box_beyond_the_image_is_a_bug(tmp_path: Path) -> None:
    stores.plain_array(tmp_path / "a.zarr", stores.pixels((8, 8)))
    with pytest.raises(ValueError, match="reaches beyond"):
        open_image(tmp_path / "a.zarr").read(Box((0, 0), (8, 9)))


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_channels_and_box(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "any.zarr"
    content = stores.pixels((5, 4, 20, 30))
    if not path.exists():
        stores.plain_array(path, content, chunks=(2, 3, 7, 8))
    image = open_image(path)
    channels = tuple(data.draw(st.lists(st.integers(0, 4), min_size=1, unique=True)))
    spans = [
        sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in (4, 20, 30)
    ]
    box = Box(tuple(s[0] for s in spans), tuple(s[1] for s in spans))
    got = image.read(box, channels=channels)
    np.testing.assert_array_equal(
        got, expected(content[(slice(None), *box.slices)], "czyx", 0, channels)
    )


@pytest.mark.parametrize(
    ("channels", "names"),
    [("nonsense", ("0", "1")), ([{"label": "DAPI"}, None], ("DAPI", "1")), (None, ("0", "1"))],
)
def test_a_broken_omero_block_costs_names_and_nothing_else(
    channels: Any, names: tuple[str, ...], tmp_path: Path
) -> None:
    path = stores.ome_image(tmp_path / "a.zarr", np.zeros((2, 9, 9), "u1"), axes="cyx")
    meta = json.loads((path / "zarr.json").read_text())
    meta["attributes"]["ome"]["omero"] = {"channels": channels}
    (path / "zarr.json").write_text(json.dumps(meta))
    assert open_image(path).channels == names
