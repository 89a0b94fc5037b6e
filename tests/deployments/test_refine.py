"""``cytopave refine`` as its users meet it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import stores
from labelled import labelled
from runs import labels_of

if TYPE_CHECKING:
    from pathlib import Path

    from commands import Command


@pytest.fixture
def image(folder: Path, truth: np.ndarray) -> Path:
    """An image with the labels ``cells``; a plain array beside it."""
    labels = truth.astype(np.uint32)
    stores.plain_array(folder / "mine.zarr", labels)
    return labelled(folder / "image.zarr", {"cells": labels}, n_levels=2, chunks=(100, 100))


SOME = ("image.zarr", "--name", "cells", "--relabel")


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        (("absent.zarr", "--relabel"), "there is no image at"),
        (("image.zarr", "--relabel"), "say which of its label images is meant (--name)"),
        (("image.zarr", "--name", "nuclei", "--relabel"), "no label image 'nuclei'"),
        (("image.zarr", "--name", "cells"), "nothing is asked for: give --fill-holes"),
        (("image.zarr", "--name", "cells", "--margin", "3"), "--margin says more of"),
        ((*SOME, "--remove-small", "many"), "--remove-small: 'many' is no length or size"),
        ((*SOME, "--remove-small", "-5"), "--remove-small: '-5' is no length or size"),
        ((*SOME, "--expand", "0"), "--expand: '0' is no length or size"),
        ((*SOME, "--expand", "5um2"), "is no length: give a distance"),
        ((*SOME, "--remove-large", "5um3"), "is no size of objects in planes"),
        ((*SOME, "--clear-border", "--margin", "-1"), "--clear-border: Input should be greater"),
        (("mine.zarr", "--expand", "2um"), "has no unit: give a number of pixels"),
        ((*SOME, "--output-name", "cells"), "the label image 'cells' is already in"),
        ((*SOME, "--output-name", "a/b"), "cannot name a label image"),
        ((*SOME, "--output", "notes.txt"), "is a file: give a folder"),
        ((*SOME, "--workers", "0"), "--workers 0 must be a number larger than 0"),
        ((*SOME, "--cluster", "cup"), "cup"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    command: Command, image: Path, tokens: tuple[str, ...], says: str
) -> None:
    (image.parent / "notes.txt").touch()
    before = sorted(image.parent.rglob("*"))
    ended = command("refine", *tokens)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("cytopave: error: ")
    assert says in ended.err
    assert ended.err.count("\n") == 1
    assert sorted(image.parent.rglob("*")) == before


def test_refine(
    command: Command, image: Path, truth: np.ndarray, prefect_api: str, dask_address: str
) -> None:
    labels = truth.copy()
    # Whatever the order of the options: grown last, so that nobody grows over the border first.
    ended = command(
        *("refine", image, "--name", "cells", "--output-name", "clean", "--relabel", "--json"),
        *("--expand", "1um", "--clear-border", "--remove-small", "150", "--cluster", dask_address),
    )
    assert ended.status == 0, ended.err
    made = json.loads(ended.out)
    assert made["labels_path"] == f"{image}/labels/clean"
    assert made["n_before"] == truth.max()
    found = labels_of(image, "clean")
    sizes = np.bincount(labels.ravel())
    ends = np.unique(np.concatenate([labels[[0, -1]].ravel(), labels[:, [0, -1]].ravel()]))
    keep = sizes >= 150
    keep[ends] = False
    assert found.max() == made["n_objects"] == keep.sum()
    assert (found[keep[labels] & (labels > 0)] > 0).all()
    assert [o["operation"] for o in made["operations"]] == [
        *("remove small 150 px", "clear border", "expand 1 micrometer", "relabel"),
    ]
    # Reports are of a segmentation, which this was not.
    ended = command("report", image, "--name", "clean")
    assert (ended.status, "was refined" in ended.err) == (2, True)
    assert f"name the labels that it was made from ({image}/labels/cells)" in ended.err
    # Labels in their own place have no others that they were made from.
    again = ("--output-name", "clean", "--overwrite", "--fill-holes", "--cluster", dask_address)
    ended = command("refine", image, "--name", "clean", *again)
    assert ended.status == 0, ended.err
    ended = command("report", image, "--name", "clean")
    assert (ended.status, "refined in their own place" in ended.err) == (2, True)


def test_the_labels_themselves_may_be_named(
    command: Command, image: Path, prefect_api: str, dask_address: str
) -> None:
    tokens = ("--fill-holes", "--cluster", dask_address)
    ended = command("refine", image / "labels" / "cells", *tokens)
    assert ended.status == 0, ended.err
    assert f"labels      {image}/labels/cells-refined" in ended.out
    assert "fill holes  0 pixels gained" in ended.out
    ended = command("refine", image / "labels" / "cells", *tokens)
    assert (ended.status, "already in" in ended.err) == (2, True)
