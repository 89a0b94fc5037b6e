from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pytest
import stores as samples
from pydantic import ValidationError

from cytopave.blocks import ImageStore, images
from cytopave.blocks.saved import load_saved
from cytopave.engine.errors import ImageError, UserError
from cytopave.engine.omezarr import stores
from cytopave.engine.omezarr.image import open_image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PIXELS = samples.pixels((40, 50))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Stores are looked up anew: no other test's are known."""
    images._opened.clear()
    images.register()
    yield
    images._opened.clear()


@pytest.mark.usefixtures("prefect_api")
def test_an_image_by_the_name_of_its_store(tmp_path: Path) -> None:
    samples.ome_image(tmp_path / "plate1" / "A1.zarr", PIXELS)
    store = ImageStore(url=f"local://{tmp_path}")
    with pytest.raises(ImageError, match=r"has no name yet: save it"):
        store.image("plate1/A1.zarr")
    store.save("our-scans")
    assert store.image("plate1/A1.zarr") == "store://our-scans/plate1/A1.zarr"
    image = open_image("store://our-scans/plate1/A1.zarr")
    np.testing.assert_array_equal(image.array[...], PIXELS)
    assert image.url == "store://our-scans/plate1/A1.zarr"


@pytest.mark.usefixtures("prefect_api")
def test_secrets_open_the_store_and_are_nowhere_else(tmp_path: Path) -> None:
    samples.plain_array(tmp_path / "a.zarr", PIXELS)
    seen: list[dict[str, Any]] = []

    class Locked(fsspec.get_filesystem_class("file")):  # type: ignore[misc]
        protocol = "locked"
        cachable = False

        def __init__(self, **options: Any) -> None:
            seen.append(options)
            if options.get("password") != "hunter2":
                raise PermissionError("locked")
            super().__init__()

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return str(super()._strip_protocol(path.removeprefix("locked://")))

    fsspec.register_implementation("locked", Locked, clobber=True)
    store = ImageStore(
        url=f"locked://{tmp_path}", storage_options={"a": 1}, secrets={"password": "hunter2"}
    )
    assert "hunter2" not in repr(store)
    assert "hunter2" not in store.model_dump_json()
    store.save("locked-scans")
    loaded = load_saved(ImageStore, "locked-scans")
    assert loaded is not None
    assert loaded.options() == {"a": 1, "password": "hunter2"}
    image = open_image("store://locked-scans/a.zarr")
    np.testing.assert_array_equal(image.array[...], PIXELS)
    assert seen
    assert "hunter2" not in repr(image)
    assert dict(image.storage_options) == {}


@pytest.mark.usefixtures("prefect_api")
def test_a_local_store_means_a_local_path(tmp_path: Path) -> None:
    ImageStore(url=str(tmp_path)).save("local-scans")
    assert images.local_path("store://local-scans/a/b.zarr") == f"{tmp_path}/a/b.zarr"
    assert images.local_path("store://local-scans") == str(tmp_path)
    assert images.local_path("s3://bucket/b.zarr") == "s3://bucket/b.zarr"
    assert images.local_path(None) is None


@pytest.mark.usefixtures("prefect_api")
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("store://nobodys/a.zarr", "no image store 'nobodys': save a 'cytopave image store'"),
        ("store://local-scans/../../etc", "names nothing: write store://NAME/path"),
        ("store:///a.zarr", "names nothing: write store://NAME/path"),
    ],
)
def test_what_names_nothing(url: str, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        open_image(url)


def test_nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_openers", [])
    with pytest.raises(UserError, match="cannot be looked up here"):
        open_image("store://our-scans/a.zarr")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": ""}, "url"),
        ({"url": "https://me:hunter2@host/scans"}, "holds a password: put it into secrets"),
        ({"url": "store://other"}, "cannot be another one"),
        ({"url": "s3://b", "storage_options": {"secret": "x"}}, "secret is not for everybody"),
        ({"url": "s3://b", "options": {}}, "options"),
    ],
)
def test_bad_stores_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ImageStore(**fields)
