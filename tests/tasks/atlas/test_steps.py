"""Steps over blocks against scanpy on the whole matrix in memory."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("scanpy")

import anndata
import scanpy as sc
from atlas_steps import take_steps, threads
from atlases import Atlas, annotated, make_atlas, simulate, write_atlas
from scipy import sparse
from sklearn.metrics import adjusted_rand_score

from cytopave.engine.atlas.parameters import (
    Aggregate,
    Counts,
    Keep,
    Leiden,
    Neighbors,
    Normalize,
    Pca,
    Rank,
    Regress,
    Scale,
    Variable,
)
from cytopave.engine.errors import AtlasError, CorruptError, PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import distributed

pytestmark = pytest.mark.filterwarnings("ignore")

SHORT: dict[str, Any] = {"neighbors": None, "umap": None, "leiden": None}
SETS = {"first": ["G50", "G60", "G70"], "second": ["G9", "G33", "G120", "unknown"]}


@pytest.fixture(scope="module")
def client() -> Iterator[distributed.Client]:
    with threads() as client:
        yield client


@pytest.fixture(autouse=True)
def nothing_kept(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    client = request.getfixturevalue("client")
    for name in client.list_datasets():
        client.unpublish_dataset(name)


def in_memory(adata: Any, *, min_genes: int, min_cells: int, n_top: int, target: Any = 1e4) -> Any:
    """scanpy's own way to a normalised matrix with its variable genes marked."""
    adata = adata.copy()
    adata.var["mt"] = adata.var_names.str.startswith("MT-")
    sc.pp.calculate_qc_metrics(adata, qc_vars=["mt"], percent_top=None, inplace=True)
    cells = adata.obs["n_genes_by_counts"] >= min_genes
    adata = adata[cells, adata.var["n_cells_by_counts"] >= min_cells].copy()
    sc.pp.normalize_total(adata, target_sum=target)
    sc.pp.log1p(adata)
    sc.pp.highly_variable_genes(adata, n_top_genes=n_top)
    return adata


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Atlas:
    return make_atlas(tmp_path_factory.mktemp("big"), 3000, 500)


@pytest.fixture(scope="module")
def analysed(big: Atlas, client: distributed.Client) -> Any:
    """A run in 8 blocks with everything that has a twin in scanpy."""
    profile = Counts(
        keep=Keep(min_genes=90, min_cells=40),
        variable=Variable(n_top=150),
        scale=Scale(),
        pca=Pca(n_comps=10),
        leiden=Leiden(resolution=0.2),
        scores=SETS,
        rank=Rank(n_genes=8),
        aggregate=Aggregate(by="truth", functions=["mean", "sum", "count_nonzero"]),
        matrix="both",
    )
    session = take_steps(client, big.path, profile, block_rows=530)
    return anndata.read_zarr(session.plan.target.path)


@pytest.fixture(scope="module")
def expected(big: Atlas) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return in_memory(big.adata, min_genes=90, min_cells=40, n_top=150)


def test_metrics_masks_and_matrix_are_identical(analysed: Any, expected: Any, big: Atlas) -> None:
    assert 0 < expected.n_obs < big.adata.n_obs
    assert 0 < expected.n_vars < big.adata.n_vars
    assert analysed.obs_names.tolist() == expected.obs_names.tolist()
    assert analysed.var_names.tolist() == expected.var_names.tolist()
    for name in set(expected.obs) - {"batch", "truth"}:
        np.testing.assert_array_equal(analysed.obs[name], expected.obs[name], err_msg=name)
    assert (analysed.X != expected.X).nnz == 0
    counts = big.adata[expected.obs_names, expected.var_names].X
    assert (analysed.layers["counts"] != counts).nnz == 0


def test_the_variable_genes_are_the_same(analysed: Any, expected: Any) -> None:
    np.testing.assert_array_equal(analysed.var["highly_variable"], expected.var["highly_variable"])
    np.testing.assert_allclose(analysed.var["means"], expected.var["means"], rtol=1e-5)
    np.testing.assert_allclose(
        analysed.var["dispersions_norm"].astype(float),
        expected.var["dispersions_norm"].astype(float),
        rtol=1e-3,
        atol=1e-4,
    )


def test_the_components_of_scaled_data_are_the_same_but_for_sign(
    analysed: Any, expected: Any
) -> None:
    reference = expected[:, expected.var["highly_variable"]].copy()
    sc.pp.scale(reference, max_value=10)
    reference.X = np.asarray(reference.X, np.float64)
    sc.pp.pca(reference, n_comps=10, svd_solver="covariance_eigh", mask_var=None)
    mine, theirs = analysed.obsm["X_pca"], reference.obsm["X_pca"]
    signs = np.sign((mine * theirs).sum(axis=0))
    assert np.abs(mine - theirs * signs).max() < 1e-5 * np.abs(theirs).max()
    assert np.abs(mine - theirs * signs).max() < 1e-4
    np.testing.assert_allclose(
        analysed.uns["pca"]["variance_ratio"], reference.uns["pca"]["variance_ratio"], rtol=1e-5
    )
    loadings = analysed.varm["PCs"]
    assert not loadings[~expected.var["highly_variable"]].any()
    strongest = np.abs(loadings).argmax(axis=0)
    assert (loadings[strongest, np.arange(10)] > 0).all()


def test_the_clusters_are_those_that_were_simulated(analysed: Any) -> None:
    assert adjusted_rand_score(analysed.obs["truth"], analysed.obs["leiden"]) >= 0.99
    sizes = analysed.obs["leiden"].value_counts(sort=False)
    assert sizes.is_monotonic_decreasing
    assert analysed.obsm["X_umap"].shape == (analysed.n_obs, 2)
    assert np.isfinite(analysed.obsm["X_umap"]).all()
    assert analysed.obsp["connectivities"].shape == (analysed.n_obs,) * 2


def test_scores_ranks_and_sums_are_those_of_scanpy(analysed: Any, expected: Any) -> None:
    for name, genes in SETS.items():
        sc.tl.score_genes(expected, genes, score_name=name)
        np.testing.assert_allclose(analysed.obs[name], expected.obs[name], atol=1e-6)
    expected.obs["leiden"] = analysed.obs["leiden"]
    sc.tl.rank_genes_groups(expected, "leiden", method="t-test", n_genes=8)
    mine, theirs = (a.uns["rank_genes_groups"] for a in (analysed, expected))
    for group in theirs["names"].dtype.names:
        assert mine["names"][group].tolist() == theirs["names"][group].tolist()
        np.testing.assert_allclose(mine["scores"][group], theirs["scores"][group], rtol=1e-3)
    sums = sc.get.aggregate(expected, "truth", ["mean", "sum", "count_nonzero"])
    assert analysed.uns["aggregate"]["groups"].tolist() == sums.obs_names.tolist()
    for name in ("mean", "sum", "count_nonzero"):
        np.testing.assert_allclose(
            analysed.varm[f"aggregate_{name}"], sums.layers[name].T, rtol=1e-5
        )


def test_the_result_does_not_depend_on_blocks_or_workers(
    tmp_path: Path, client: distributed.Client
) -> None:
    atlas = make_atlas(tmp_path, 300, 120)
    profile = Counts(keep=Keep(min_genes=20), variable=Variable(n_top=50), **SHORT)
    found = []
    for rows in (37, 300):
        out = tmp_path / f"{rows}.zarr"
        scratch = tmp_path / f"scratch{rows}"
        take_steps(client, atlas.path, profile, block_rows=rows, output=str(out), scratch=scratch)
        found.append(anndata.read_zarr(out))
    one, other = found
    assert one.obs.equals(other.obs)
    assert one.var["highly_variable"].equals(other.var["highly_variable"])
    assert (one.X != other.X).nnz == 0
    np.testing.assert_allclose(one.obsm["X_pca"], other.obsm["X_pca"], atol=1e-4)


@pytest.mark.parametrize(("flavor", "batch"), [("cell_ranger", "batch"), ("seurat_v3", None)])
def test_other_flavors_and_batches_choose_the_genes_of_scanpy(
    tmp_path: Path, client: distributed.Client, flavor: Any, batch: str | None
) -> None:
    atlas = make_atlas(tmp_path, 500, 200)
    variable = Variable(n_top=60, flavor=flavor, batch_key=batch)
    profile = Counts(keep=Keep(min_genes=0, min_cells=0), variable=variable, **SHORT)
    session = take_steps(client, atlas.path, profile, block_rows=111)
    found = anndata.read_zarr(session.plan.target.path)
    reference = atlas.adata.copy()
    if flavor == "cell_ranger":
        sc.pp.normalize_total(reference, target_sum=1e4)
        sc.pp.log1p(reference)
    sc.pp.highly_variable_genes(reference, n_top_genes=60, flavor=flavor, batch_key=batch)
    np.testing.assert_array_equal(found.var["highly_variable"], reference.var["highly_variable"])


def test_the_median_is_that_of_cells_with_counts(
    tmp_path: Path, client: distributed.Client
) -> None:
    x, truth = simulate(200, 100)
    x = x.tolil()
    x[[3, 77]] = 0
    adata = annotated(x.tocsr(), truth)
    profile = Counts(
        keep=Keep(min_genes=0),
        normalize=Normalize(target_sum=None),
        variable=Variable(n_top=40),
        **SHORT,
    )
    session = take_steps(client, write_atlas(tmp_path, adata), profile, block_rows=60)
    found = anndata.read_zarr(session.plan.target.path)
    reference = in_memory(adata, min_genes=0, min_cells=3, n_top=40, target=None)
    assert found.n_obs == 200  # cells without counts stay, and stay without
    assert not found.X[[3, 77]].nnz
    assert (found.X != reference.X).nnz == 0


def test_regression_leaves_the_residuals_of_least_squares(
    tmp_path: Path, client: distributed.Client
) -> None:
    atlas = make_atlas(tmp_path, 400, 150)
    keys = ["total_counts", "pct_counts_mt"]
    profile = Counts(
        keep=Keep(min_genes=0, min_cells=0),
        variable=Variable(n_top=50),
        regress=Regress(keys=keys),
        pca=Pca(n_comps=10),
        **SHORT,
    )
    session = take_steps(client, atlas.path, profile, block_rows=90)
    mine = session.stage("regress").X.compute()
    reference = in_memory(atlas.adata, min_genes=0, min_cells=0, n_top=50)
    values = reference[:, reference.var["highly_variable"]].X.toarray().astype(np.float64)
    design = np.column_stack([np.ones(400), reference.obs[keys].to_numpy(np.float64)])
    fitted = design @ np.linalg.lstsq(design, values, rcond=None)[0]
    np.testing.assert_allclose(mine, values - fitted, atol=1e-6)


def test_real_counts_give_what_scanpy_gives(tmp_path: Path, client: distributed.Client) -> None:
    """700 blood cells that scanpy ships; its counts are restored from the logarithms."""
    small = sc.datasets.pbmc68k_reduced()
    values = np.expm1(small.raw.X.toarray())
    least = np.where(values > 0, values, np.inf).min(axis=1, keepdims=True)
    counts = sparse.csr_matrix(np.rint(values / least).astype(np.float32))
    adata = anndata.AnnData(counts, small.obs[["bulk_labels"]], small.raw.var[[]])
    profile = Counts(
        keep=Keep(min_genes=100),
        variable=Variable(n_top=300),
        scale=Scale(),
        pca=Pca(n_comps=30),
        umap=None,
        leiden=Leiden(resolution=0.6),
    )
    session = take_steps(client, write_atlas(tmp_path, adata), profile, block_rows=128)
    found = anndata.read_zarr(session.plan.target.path)
    reference = in_memory(adata, min_genes=100, min_cells=3, n_top=300)
    assert found.obs_names.equals(reference.obs_names)
    np.testing.assert_array_equal(found.var["highly_variable"], reference.var["highly_variable"])
    inner = reference[:, reference.var["highly_variable"]].copy()
    sc.pp.scale(inner, max_value=10)
    sc.pp.pca(inner, n_comps=30, svd_solver="covariance_eigh", mask_var=None)
    assert np.abs(np.abs(found.obsm["X_pca"]) - np.abs(inner.obsm["X_pca"])).max() < 1e-3
    sc.pp.neighbors(inner, use_rep="X_pca")
    sc.tl.leiden(inner, resolution=0.6, flavor="igraph", n_iterations=2, directed=False)
    assert adjusted_rand_score(found.obs["leiden"], inner.obs["leiden"]) >= 0.9
    assert adjusted_rand_score(found.obs["bulk_labels"], found.obs["leiden"]) > 0.4


def test_a_wide_sparse_matrix_of_real_cells(tmp_path: Path, client: distributed.Client) -> None:
    """The sample of celltypist: few cells, 32,786 genes, some counts corrected to fractions."""
    found = importlib.util.find_spec("celltypist")
    assert found is not None
    assert found.origin is not None
    sample = Path(found.origin).parent / "data" / "samples" / "sample_cell_by_gene.csv"
    with sample.open() as lines:  # pandas takes 11 s for so many columns
        genes = next(lines).rstrip().split(",")[1:]
        cells, values = zip(*(line.rstrip().split(",", 1) for line in lines), strict=True)
    counts = sparse.csr_matrix([np.array(row.split(","), np.float32) for row in values])
    adata = anndata.AnnData(counts, pd.DataFrame(index=[*cells]), pd.DataFrame(index=genes))
    assert adata.n_vars > 32_000
    profile = Counts(
        keep=Keep(min_genes=500),
        variable=Variable(n_top=500),
        scale=Scale(),
        pca=Pca(n_comps=20),
        **SHORT,
    )
    session = take_steps(client, write_atlas(tmp_path, adata), profile, block_rows=64)
    result = anndata.read_zarr(session.plan.target.path)
    reference = in_memory(adata, min_genes=500, min_cells=3, n_top=500)
    assert 0 < reference.n_obs < adata.n_obs
    assert reference.var["mt"].any()
    assert result.obs_names.tolist() == reference.obs_names.tolist()
    assert result.var_names.tolist() == reference.var_names.tolist()
    for column in ("total_counts", "n_genes_by_counts", "pct_counts_mt"):
        np.testing.assert_allclose(result.obs[column], reference.obs[column], rtol=1e-5)
    np.testing.assert_array_equal(result.var["highly_variable"], reference.var["highly_variable"])
    inner = reference[:, reference.var["highly_variable"]].copy()
    sc.pp.scale(inner, max_value=10)
    sc.pp.pca(inner, n_comps=20, svd_solver="covariance_eigh", mask_var=None)
    assert np.abs(np.abs(result.obsm["X_pca"]) - np.abs(inner.obsm["X_pca"])).max() < 1e-3


EMPTY = sparse.csr_matrix((40, 30), dtype=np.float32)


def refused(client: Any, path: Path, match: str, profile: Any = None, **options: Any) -> None:
    small = Counts(keep=Keep(min_genes=0, min_cells=0), variable=Variable(n_top=10), **SHORT)
    with pytest.raises((AtlasError, CorruptError, PlanError), match=match):
        take_steps(client, path, profile or small, **options)
    assert not (path.parent / "out.zarr").exists()


def test_matrices_that_cannot_be_analysed_get_one_clear_line(
    tmp_path: Path, client: distributed.Client
) -> None:
    x, _ = simulate(40, 30)

    def store(name: str, content: Any) -> Path:
        return write_atlas(tmp_path, annotated(sparse.csr_matrix(content)), name)

    bad = x.copy()
    bad.data[bad.indptr[17]] = np.nan
    refused(client, store("nan.zarr", bad), r"NaN or infinity \(row 17")
    bad.data[bad.indptr[17]] = -2
    refused(client, store("negative.zarr", bad), r"a negative value \(row 17.*profile intensities")
    refused(client, store("one-cell.zarr", x[:1]), "1 cells of 1 are left")
    refused(
        client,
        store("one-gene.zarr", x[:, :1]),
        "1 genes or columns of 1 are left, and 2 are needed",
    )
    refused(
        client,
        store("empty.zarr", EMPTY),
        "no kept cell .* has counts",
    )


def test_what_is_left_must_suffice(tmp_path: Path, client: distributed.Client) -> None:
    path = make_atlas(tmp_path, 60, 40).path
    loose = Keep(min_genes=0, min_cells=0)
    top = Variable(n_top=10)
    refused(client, path, "no cells of 60 are left: relax keep", Counts(**SHORT))
    refused(
        client,
        path,
        r"at most 1\d principal components",
        Counts(keep=loose, variable=top, pca=Pca(n_comps=40), **SHORT),
    )
    few = Counts(
        keep=loose, variable=top, neighbors=Neighbors(n_neighbors=60), umap=None, leiden=None
    )
    refused(client, path, "60 cells do not have 60 neighbours each", few)
    unknown = Counts(keep=Keep(min_genes=0, columns={"doublet_score": (None, 0.3)}), **SHORT)
    refused(client, path, "no column 'doublet_score'", unknown)
    refused(client, path, "none of the genes of the set 's'", Counts(scores={"s": ["X"]}, **SHORT))
    dense = Counts(keep=loose, variable=Variable(n_top=40), scale=Scale(), **SHORT)
    refused(client, path, "makes X dense", dense, worker_bytes=50_000, block_rows=60)
    refused(client, path, "a block of 60 rows needs", dense, worker_bytes=1000, block_rows=60)
