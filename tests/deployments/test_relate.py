"""``cytopave relate`` as its users meet it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from labelled import labelled
from measured import measured

from cytopave.engine.tables.read import open_table

if TYPE_CHECKING:
    from commands import Command


@pytest.fixture
def image(folder: Path, truth: np.ndarray) -> Path:
    """An image with nuclei in cells, both measured, and labels that are not."""
    cells = truth.astype(np.uint32)
    nuclei = np.where(np.indices(truth.shape).sum(axis=0) % 5 > 0, cells, 0)
    nuclei[:100] = 0
    labels = {"nuclei": nuclei, "cells": cells, "bare": cells}
    image = labelled(folder / "image.zarr", labels, chunks=(100, 100))
    for name in ("nuclei", "cells"):
        measured(image, name)
    return image


PAIR = ("image.zarr", "--child", "nuclei", "--parent", "cells")


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        (("absent.zarr", *PAIR[1:]), "there is no image at"),
        (("image.zarr", "--child", "nuclei"), "--parent"),
        ((*PAIR[:4], "absent"), "no label image 'absent'"),
        ((*PAIR[:4], "nuclei"), "child and parent are both"),
        ((*PAIR[:4], "bare"), "have no table 'bare'"),
        ((*PAIR, "--csv", "notes.txt"), "notes.txt exists: choose another file"),
        ((*PAIR, "--workers", "0"), "--workers 0 must be a number larger than 0"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    command: Command, image: Path, tokens: tuple[str, ...], says: str
) -> None:
    (image.parent / "notes.txt").touch()
    before = sorted(image.parent.rglob("*"))
    ended = command("relate", *tokens)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("cytopave: error: ")
    assert says in ended.err
    assert ended.err.count("\n") == 1
    assert sorted(image.parent.rglob("*")) == before


def test_relate(
    command: Command, image: Path, truth: np.ndarray, prefect_api: str, dask_address: str
) -> None:
    ended = command("relate", *PAIR, "--csv", "a.csv", "--json", "--cluster", dask_address)
    assert ended.status == 0, ended.err
    made = json.loads(ended.out)
    nuclei = len(open_table(image, "nuclei"))
    assert made["n_children"] == nuclei < made["n_parents"] == truth.max()
    assert (made["n_without_parent"], made["n_without_child"]) == (0, truth.max() - nuclei)
    table = open_table(image, "nuclei").read()
    np.testing.assert_array_equal(table["in_cells"], table["label"])
    assert set(table["in_cells_fraction"]) == {1.0}
    assert len(Path("a.csv").read_text().splitlines()) == nuclei + 1
    # A second time there is nothing to do, but to copy it.
    ended = command("relate", *PAIR)
    assert (ended.status, "has a column 'in_cells' already" in ended.err) == (2, True)
    ended = command("relate", *PAIR, "--parquet", "a.parquet")
    assert (ended.status, ended.err) == (0, "")
    assert f"children          {nuclei}, 0 of them without a parent" in ended.out
    assert Path("a.parquet").exists()
