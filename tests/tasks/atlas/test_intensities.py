"""A table of segmented cells gets its clusters back as columns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("scanpy")

import anndata
from atlas_steps import plan_of, take_steps, threads
from atlases import make_table
from sklearn.metrics import adjusted_rand_score

from cytopave.engine.atlas.parameters import Intensities, KeepCells, Leiden, Rank
from cytopave.engine.atlas.plan import AtlasPlan
from cytopave.engine.errors import AtlasError, OutputError, PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import distributed

pytestmark = pytest.mark.filterwarnings("ignore")

PROFILE = Intensities(
    keep=KeepCells(columns={"area": (20, None)}, exclude=["border"], features=["*_mean"]),
    umap=None,
    leiden=Leiden(resolution=0.05),
)


@pytest.fixture(scope="module")
def client() -> Iterator[distributed.Client]:
    with threads() as client:
        yield client
        for name in client.list_datasets():
            client.unpublish_dataset(name)


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_results_come_back_as_columns_of_the_table(
    tmp_path: Path, client: distributed.Client, zarr_format: int
) -> None:
    table = make_table(tmp_path / "image.zarr", zarr_format=zarr_format)
    before = content(table.path)
    take_steps(client, table.path, PROFILE, output=None, block_rows=70)
    again = anndata.read_zarr(table.path)
    kept = ((table.adata.obs["area"] >= 20) & ~table.adata.obs["border"]).to_numpy()
    assert again.obs["leiden"].notna().tolist() == kept.tolist()
    assert adjusted_rand_score(table.truth[kept], again.obs["leiden"][kept]) == 1
    assert again.obs.columns.tolist() == [*table.adata.obs.columns, "leiden"]
    assert again.obsm["X_pca"].shape == (300, 3)  # three intensities were chosen, all are used
    assert (np.isfinite(again.obsm["X_pca"]).all(axis=1) == kept).all()
    np.testing.assert_array_equal(again.X, table.adata.X)
    after = content(table.path)
    changed = {n for n in before if before[n] != after[n]}
    assert changed == ({"obs/.zattrs"} if zarr_format == 2 else {"obs/zarr.json"})


def test_columns_that_are_there_are_replaced_only_when_asked(
    tmp_path: Path, client: distributed.Client
) -> None:
    path = make_table(tmp_path / "image.zarr").path
    take_steps(client, path, PROFILE, output=None)
    with pytest.raises(OutputError, match="has the column 'leiden' already"):
        plan_of(path, PROFILE, output=None)
    other = PROFILE.model_copy(update={"leiden": Leiden(resolution=0.05, key="kinds")})
    take_steps(client, path, other, output=None)
    coarse = PROFILE.model_copy(update={"leiden": Leiden(resolution=1e-6)})
    take_steps(client, path, coarse, output=None, overwrite=True)
    obs = anndata.read_zarr(path).obs
    assert obs["kinds"].nunique() == 2
    # Two populations that share no edge stay two, however coarse.
    assert obs["leiden"].nunique() == 2
    assert obs.columns.tolist()[-2:] == ["kinds", "leiden"]


def test_a_store_of_its_own_holds_what_was_kept(tmp_path: Path, client: distributed.Client) -> None:
    table = make_table(tmp_path / "image.zarr")
    before = content(table.path)
    take_steps(client, table.path, PROFILE, output=str(tmp_path / "own.zarr"), block_rows=64)
    found = anndata.read_zarr(tmp_path / "own.zarr")
    expected = table.adata[found.obs_names, found.var_names]
    np.testing.assert_allclose(found.X, np.log1p(expected.X), rtol=1e-6)
    np.testing.assert_array_equal(found.obsm["spatial"], expected.obsm["spatial"])
    assert content(table.path) == before


def test_components_are_those_of_scaled_logarithms(
    tmp_path: Path, client: distributed.Client
) -> None:
    table = make_table(tmp_path / "image.zarr")
    short: dict[str, Any] = {"neighbors": None, "umap": None, "leiden": None}
    for how, values in (
        ("log1p", np.log1p(table.adata.X)),
        ("arcsinh", np.arcsinh(table.adata.X / 5)),
        ("none", table.adata.X),
    ):
        profile = Intensities(transform=how, **short)
        out = tmp_path / f"{how}.zarr"
        take_steps(client, table.path, profile, output=str(out), block_rows=100)
        scaled = (values - values.mean(axis=0)) / values.std(axis=0, ddof=1)
        scaled = np.clip(scaled, -10, 10).astype(np.float64)
        left, sizes, _ = np.linalg.svd(scaled - scaled.mean(axis=0), full_matrices=False)
        mine = anndata.read_zarr(out).obsm["X_pca"]
        np.testing.assert_allclose(np.abs(mine), np.abs(left * sizes), atol=1e-4)


def test_what_a_table_cannot_have_is_refused(tmp_path: Path, client: distributed.Client) -> None:
    table = make_table(tmp_path / "image.zarr")
    ranked = PROFILE.model_copy(update={"rank": Rank()})
    with pytest.raises(PlanError, match="for rank and aggregate name an output"):
        plan_of(table.path, ranked, output=None)
    nothing = PROFILE.model_copy(update={"keep": KeepCells(features=["Cy5*"])})
    with pytest.raises(AtlasError, match="no genes or columns of 4 are left"):
        take_steps(client, table.path, nothing, output=None)
    adata = table.adata.copy()
    adata.X[7, 2] = -3
    adata.write_zarr(tmp_path / "negative.zarr")
    logs = Intensities(neighbors=None, umap=None, leiden=None)
    with pytest.raises(AtlasError, match=r"a negative value \(row 7, column 2\).*arcsinh"):
        take_steps(client, tmp_path / "negative.zarr", logs)


def test_the_key_of_a_step_follows_what_it_depends_on(tmp_path: Path) -> None:
    path = make_table(tmp_path / "image.zarr").path
    first = plan_of(path, PROFILE, output=None)
    finer = PROFILE.model_copy(update={"leiden": Leiden(resolution=2)})
    other = plan_of(path, finer, output=None)
    same = [s for s in first.steps if first.key(s) == other.key(s)]
    assert same == ["keep", "subset", "scale", "pca", "neighbors"]
    assert first.root == other.root
    assert AtlasPlan.load(first.save()) == first
