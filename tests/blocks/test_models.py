from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from cytopave.blocks import CellposeModel
from cytopave.blocks.models import with_saved_model
from cytopave.engine.errors import SegmenterError
from cytopave.engine.segmenters import Cellpose, Threshold

pytestmark = pytest.mark.usefixtures("prefect_api")
DIGEST, OTHER = "a" * 64, "b" * 64


def test_a_saved_model_stands_for_its_file_and_its_use() -> None:
    CellposeModel(model="/models/n.pt", sha256=DIGEST, diameter=22, channels=["DAPI"]).save("ours")
    named = Cellpose(model="model://ours", min_size=30)
    segmenter, channels = with_saved_model(named, None)
    assert segmenter == Cellpose(model="/models/n.pt", sha256=DIGEST, diameter=22, min_size=30)
    assert channels == ["DAPI"]
    # What a run says itself counts more.
    segmenter, channels = with_saved_model(named.model_copy(update={"diameter": 9.0}), [1])
    assert segmenter.diameter_px == 9
    assert channels == [1]


def test_other_segmenters_stay_as_they_are() -> None:
    for segmenter in (Cellpose(model="cpsam_v2"), Cellpose(model="/a/b.pt"), Threshold()):
        assert with_saved_model(segmenter, ["DAPI"]) == (segmenter, ["DAPI"])


def test_what_cannot_be_meant() -> None:
    with pytest.raises(SegmenterError, match="no saved model 'nobodys': save a"):
        with_saved_model(Cellpose(model="model://nobodys"), None)
    CellposeModel(model="nuclei-tiny", sha256=DIGEST).save("pinned")
    with pytest.raises(SegmenterError, match=f"{DIGEST}, and sha256 is {OTHER}: leave sha256 out"):
        with_saved_model(Cellpose(model="model://pinned", sha256=OTHER), None)


@pytest.mark.parametrize(
    "fields", [{}, {"model": ""}, {"model": "m", "sha256": "12"}, {"model": "m", "diameter": 0}]
)
def test_bad_models_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CellposeModel(**fields)
