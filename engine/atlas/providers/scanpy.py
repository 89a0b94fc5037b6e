"""The provider for CPUs: scanpy's functions over Dask, and ours where it has none for Dask."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.atlas.providers.base import Components, numbered
from cytopave.engine.atlas.qc import lazy_metrics
from cytopave.engine.atlas.regress import residuals

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from cytopave.engine.atlas.parameters import Leiden, Neighbors, Rank, Scale, Umap, Variable


class Scanpy:
    """scanpy 1.12 on Dask arrays of scipy CSR matrices or numpy arrays."""

    dense_bytes = 8  # scanpy's scale makes float64 of a lazy matrix

    def place(self, x: Any) -> Any:
        """They are there."""
        return x

    def fetch(self, x: Any) -> Any:
        """They are there."""
        return x

    def guard(self, x: Any) -> Any:
        """Scanpy copies what it changes, where the matrix is lazy."""
        return x

    def select(self, x: Any, genes: np.ndarray) -> Any:
        """Dask's own choice of columns."""
        return x[:, np.flatnonzero(genes)]

    def quality(self, x: Any, marks: dict[str, np.ndarray]) -> tuple[pd.DataFrame, pd.DataFrame]:
        """One pass, by functions of ours: scanpy's needs the whole matrix in one process."""
        return lazy_metrics(x, marks)

    def normalize(self, adata: Any, target_sum: float) -> None:
        """Lazy."""
        import scanpy as sc

        with _quiet():
            sc.pp.normalize_total(adata, target_sum=target_sum)
            sc.pp.log1p(adata)

    def variable(self, adata: Any, step: Variable) -> pd.DataFrame:
        """One pass; seurat_v3 takes four."""
        import scanpy as sc

        before = set(adata.var.columns)
        with _quiet():
            sc.pp.highly_variable_genes(
                adata, n_top_genes=step.n_top, flavor=step.flavor, batch_key=step.batch_key
            )
        return adata.var[[c for c in adata.var.columns if c not in before]].copy()

    def regress(self, adata: Any, keys: list[str]) -> None:
        """One pass for the normal equations; then lazy. scanpy's own cannot take lazy matrices."""
        adata.X = residuals(adata.X, adata.obs[keys].to_numpy(np.float64))

    def scale(self, adata: Any, step: Scale) -> None:
        """Two passes for mean and variance; then lazy."""
        import scanpy as sc

        with _quiet():
            sc.pp.scale(adata, zero_center=step.zero_center, max_value=step.max_value)

    def pca(self, adata: Any, n_comps: int) -> Components:
        """One pass for the covariance; the scores are lazy."""
        import scanpy as sc

        with _quiet():
            sc.pp.pca(adata, n_comps=n_comps, svd_solver="covariance_eigh", mask_var=None)
        found = adata.uns["pca"]
        return Components(
            scores=adata.obsm["X_pca"],
            loadings=np.asarray(adata.varm["PCs"]),
            variance=np.asarray(found["variance"]),
            ratio=np.asarray(found["variance_ratio"]),
        )

    def neighbors(self, adata: Any, step: Neighbors, *, seed: int) -> None:
        """Exact below 8192 cells, then pynndescent's approximation, unless asked for."""
        import scanpy as sc

        transformer = {"auto": None, "exact": "sklearn", "approximate": "pynndescent"}
        with _quiet():
            sc.pp.neighbors(
                adata,
                n_neighbors=step.n_neighbors,
                n_pcs=step.n_pcs,
                use_rep="X_pca",
                metric=step.metric,
                transformer=transformer[step.algorithm],
                random_state=seed,
            )

    def umap(self, adata: Any, step: Umap, *, seed: int) -> np.ndarray:
        """umap-learn."""
        import scanpy as sc

        with _quiet():
            sc.tl.umap(adata, min_dist=step.min_dist, spread=step.spread, random_state=seed)
        return np.asarray(adata.obsm["X_umap"], np.float32)

    def leiden(self, adata: Any, step: Leiden, *, seed: int) -> np.ndarray:
        """Igraph's."""
        import scanpy as sc

        with _quiet():
            sc.tl.leiden(
                adata,
                resolution=step.resolution,
                n_iterations=step.n_iterations,
                flavor="igraph",
                directed=False,
                random_state=seed,
                key_added="found",
            )
        return numbered(adata.obs["found"])

    def rank(self, adata: Any, step: Rank, by: str) -> Any:
        """Three passes."""
        import scanpy as sc

        with _quiet():
            sc.tl.rank_genes_groups(adata, by, method="t-test", n_genes=step.n_genes)
        return adata.uns["rank_genes_groups"]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the advice for interactive use; scanpy's errors are not touched."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
