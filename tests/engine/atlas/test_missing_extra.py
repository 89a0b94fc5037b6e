from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from cytopave.engine.atlas.convert import convert_atlas
from cytopave.engine.atlas.providers.base import choose_provider
from cytopave.engine.atlas.store import open_atlas
from cytopave.engine.errors import MissingExtraError

HERE = importlib.util.find_spec("scanpy") is not None


@pytest.mark.skipif(HERE, reason="scanpy is installed")
def test_the_extra_is_named_where_it_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingExtraError, match=r"cytopave\[atlas\]"):
        open_atlas(tmp_path / "a.zarr")
    with pytest.raises(MissingExtraError, match=r"cytopave\[atlas\]"):
        convert_atlas(tmp_path / "a.h5ad", tmp_path / "a.zarr")


def test_the_provider_is_chosen_by_what_there_is() -> None:
    assert choose_provider("auto", gpu=False) == "scanpy"
    assert choose_provider("scanpy", gpu=True) == "scanpy"
    with pytest.raises(MissingExtraError, match="none is visible there: use the provider scanpy"):
        choose_provider("rapids", gpu=False)
    if importlib.util.find_spec("rapids_singlecell") is None:
        assert choose_provider("auto", gpu=True) == "scanpy"
        with pytest.raises(MissingExtraError, match="atlas-cuda13"):
            choose_provider("rapids", gpu=True)
