"""What a plan decides, by what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("scanpy")

from atlas_steps import plan_of
from atlases import make_atlas, make_table

from cytopave.engine.atlas import planner
from cytopave.engine.atlas.parameters import Counts, Intensities
from cytopave.engine.atlas.plan import AtlasPlan

if TYPE_CHECKING:
    from pathlib import Path


def planned(store: Path, profile: Any, provider: str, gpu_bytes: int) -> AtlasPlan:
    with pytest.MonkeyPatch.context() as patch:  # rapids-singlecell need not be installed
        patch.setattr(planner, "choose_provider", lambda *_, **__: provider)
        found: AtlasPlan = plan_of(store, profile, gpu_bytes=gpu_bytes)
    return found


def test_counts_stay_on_gpus_where_they_take_a_quarter_at_most(tmp_path: Path) -> None:
    atlas = make_atlas(tmp_path, 60, 40)
    need = atlas.adata.X.nnz * 8 + 60 * 4
    fits = planned(atlas.path, Counts(), "rapids", 4 * need)
    assert fits.x_bytes == need
    assert fits.resident
    assert not planned(atlas.path, Counts(), "rapids", 4 * need - 4).resident
    assert not planned(atlas.path, Counts(), "scanpy", 1 << 40).resident
    table = make_table(tmp_path / "image.zarr").path
    assert not planned(table, Intensities(), "rapids", 1 << 40).resident


def test_results_are_those_of_a_run_on_other_cards(tmp_path: Path) -> None:
    path = make_atlas(tmp_path, 60, 40).path
    one, other = (planned(path, Counts(), "rapids", n) for n in (1 << 40, 1))
    assert (one.resident, other.resident) == (True, False)
    assert one.root == other.root
    assert [one.key(s) for s in one.steps] == [other.key(s) for s in other.steps]


def test_a_plan_from_before_there_was_a_choice_is_read(tmp_path: Path) -> None:
    plan = planned(make_atlas(tmp_path, 60, 40).path, Counts(), "rapids", 1 << 40)
    text = plan.model_dump_json(exclude={"resident"})
    assert AtlasPlan.model_validate_json(text) == plan.model_copy(update={"resident": False})
