"""``cytopave measure`` as its users meet it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import stores
from measured import measured

if TYPE_CHECKING:
    from commands import Command


@pytest.fixture
def labelled(image: Path, truth: np.ndarray) -> Path:
    stores.group(image / "labels", {"ome": {"version": "0.5", "labels": ["cells"]}})
    stores.ome_image(image / "labels" / "cells", truth.astype(np.uint32), n_levels=2)
    return image


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        (("absent.zarr",), "there is no image at"),
        (("image.zarr", "--labels", "nuclei"), "has no label image 'nuclei': those there are cell"),
        (("image.zarr", "--labels", "a/b.zarr"), "there are no labels at"),
        (("image.zarr", "--labels", "other.zarr"), "fit no level of"),
        (("image.zarr", "--channels", "DAPI"), "has no channel axis"),
        (("image.zarr", "--name", "taken"), "the table 'taken' is already in"),
        (("image.zarr", "--name", "a/b"), "cannot name a table"),
        (("image.zarr", "--csv", "notes.txt"), "notes.txt exists: choose another file"),
        (("image.zarr", "--parquet", "no/a.parquet"), "is no folder to write to"),
        (("image.zarr", "--workers", "0"), "--workers 0 must be a number larger than 0"),
        (("image.zarr", "--output", "notes.txt"), "is a file: give a folder"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    command: Command, labelled: Path, tokens: tuple[str, ...], says: str
) -> None:
    stores.plain_array(labelled.parent / "other.zarr", np.zeros((9, 9), np.uint8))
    stores.group(labelled / "tables", {"tables": ["taken"]})
    stores.group(labelled / "tables" / "taken", {})
    (labelled.parent / "notes.txt").touch()
    before = sorted(labelled.parent.rglob("*"))
    ended = command("measure", *tokens)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("cytopave: error: ")
    assert says in ended.err
    assert ended.err.count("\n") == 1
    assert sorted(labelled.parent.rglob("*")) == before


def test_measure(
    command: Command, labelled: Path, truth: np.ndarray, prefect_api: str, dask_address: str
) -> None:
    ended = command("measure", labelled, "--csv", "a.csv", "--json", "--cluster", dask_address)
    assert ended.status == 0, ended.err
    made = json.loads(ended.out)
    assert made["n_objects"] == truth.max()
    assert made["table_path"] == f"{labelled}/tables/cells"
    assert made["files"] == {"csv": str(Path("a.csv").absolute())}
    assert len(Path("a.csv").read_text().splitlines()) == truth.max() + 1
    assert not Path(".cytopave").exists()


def test_a_table_that_is_there_is_only_exported(
    command: Command, labelled: Path, truth: np.ndarray
) -> None:
    measured(labelled, "cells")
    ended = command("measure", labelled, "--parquet", "a.parquet")
    assert (ended.status, ended.err) == (0, "")
    assert f"objects, measured before  {truth.max()}" in ended.out
    assert Path("a.parquet").exists()
    again = command("measure", labelled)
    assert again.status == 2
    assert "already in" in again.err
