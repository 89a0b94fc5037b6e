"""What a refinement refuses before it reads a pixel, and where its result goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stores
from labelled import labelled

from cytopave.engine.errors import UserError
from cytopave.engine.refine import ClearBorder, Expand, Relabel, RemoveSmall
from cytopave.engine.refine.planner import plan_refinement

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image with the labels ``cells``; beside it a plain array without units."""
    stores.plain_array(tmp_path / "plain.zarr", np.zeros((64, 60), np.uint16))
    stores.plain_array(tmp_path / "float.zarr", np.zeros((64, 60), np.float32))
    return labelled(tmp_path / "image.zarr", {"cells": np.zeros((64, 60), np.uint32)})


@pytest.mark.parametrize(
    ("place", "operations", "request_", "says"),
    [
        ("image.zarr", [Relabel()], {"labels": "nuclei"}, "no label image 'nuclei'"),
        ("image.zarr", [Relabel()], {}, "is an image: say which.*those there are cells"),
        ("absent.zarr", [Relabel()], {}, "there is no image at"),
        ("float.zarr", [Relabel()], {}, "holds float32 values, which are no labels"),
        ("image.zarr", [], {"labels": "cells"}, "name at least one operation"),
        ("plain.zarr", [Expand(distance="2um")], {}, "axis y has no unit"),
        ("image.zarr", [RemoveSmall(size="2um")], {"labels": "cells"}, "such as 20um2"),
        ("image.zarr", [ClearBorder(margin=40)], {"labels": "cells"}, "take a smaller margin"),
        ("image.zarr", [Relabel()], {"labels": "cells", "name": "a/b"}, "cannot name a label"),
        ("image.zarr", [Relabel()], {"labels": "cells", "name": "cells"}, "is already in"),
        ("image.zarr", [Relabel()], {"labels": "cells", "output": "{0}/plain.zarr"}, "zarr array"),
    ],
)
def test_refused(
    image: Path, place: str, operations: list[Any], request_: dict[str, Any], says: str
) -> None:
    folder = image.parent
    request_ = {k: v.format(folder) for k, v in request_.items()}
    before = sorted(folder.rglob("*"))
    with pytest.raises(UserError, match=says):
        plan_refinement(str(folder / place), operations, **request_)
    assert sorted(folder.rglob("*")) == before


def test_where_the_result_goes(image: Path) -> None:
    folder = image.parent

    def place(given: Path, **request: Any) -> str:
        target = plan_refinement(str(given), [Relabel()], **request).target
        return f"{target.published}, {target.source}"

    inside = f"{image}/labels/cells-refined, ../../"
    assert place(image, labels="cells") == inside
    assert place(image / "labels" / "cells") == inside
    assert place(folder / "plain.zarr") == f"{folder}/plain.labels.zarr/labels/plain-refined, None"
    elsewhere = place(image, labels="cells", output=str(folder / "b.zarr"), name="c")
    assert elsewhere == f"{folder}/b.zarr/labels/c, None"
    # Labels from elsewhere, of an image: into the image.
    assert place(image, labels=str(folder / "plain.zarr"), name="c") == f"{image}/labels/c, ../../"


def test_the_digest_tells_what_would_come_out(image: Path) -> None:
    def digest(*operations: Any) -> str:
        return plan_refinement(str(image), operations, labels="cells").digest

    assert digest(Expand(distance=3)) == digest(Expand(distance="3 px"))
    assert digest(Expand(distance=3)) != digest(Expand(distance=4))
    assert digest(Relabel(), Expand(distance=3)) != digest(Expand(distance=3), Relabel())
