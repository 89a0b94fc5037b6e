"""The provider for GPUs: rapids-singlecell over dask-cuda. Written for 0.18.1.

Two things there go wrong without a word, and are prevented here:

- The kernels for ``normalize_total`` and ``scale`` write into the block that they are given. One
  that is kept in memory would change under whoever reads it next, so blocks are copied before
  (`guard`); upstream: scverse/rapids-singlecell#753.
- The kernel of the covariance takes the columns of every row for ascending, and on Dask nobody sees
  to that. Choosing columns of a CSR matrix in cupy 14.2 leaves them in any order (its threads queue
  up by an atomic counter), so they are sorted after (`choose_columns`).

Numbers and names of arguments differ from scanpy's in places: docs/atlas.md has the list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.atlas.kept import choose_columns
from cytopave.engine.atlas.providers.base import Components, numbered
from cytopave.engine.errors import AtlasError

if TYPE_CHECKING:
    import pandas as pd

    from cytopave.engine.atlas.parameters import Leiden, Neighbors, Rank, Scale, Umap, Variable

BRUTE_CELLS = 500_000
"""Below it the exact search is fast enough; beyond it nn_descent (rapids-singlecell's guide)."""

LEVELS = 100
"""Most levels of Leiden; it ends before, when moving cells no longer helps."""


class Rapids:
    """rapids-singlecell on Dask arrays of cupy CSR matrices or cupy arrays."""

    dense_bytes = 4

    def place(self, x: Any) -> Any:
        """Onto the worker's GPU, block by block, when a block is needed."""
        import rapids_singlecell as rsc

        return rsc.get.X_to_GPU(x)

    def fetch(self, x: Any) -> Any:
        """Into the host's memory, block by block."""
        return x.map_blocks(_to_host, dtype=x.dtype, meta=_to_host(x._meta))

    def guard(self, x: Any) -> Any:
        """A copy of each block for the kernels that write into theirs."""
        return x.map_blocks(_copied, dtype=x.dtype, meta=x._meta)

    def select(self, x: Any, genes: np.ndarray) -> Any:
        """Some genes of each block, in ascending order within each row."""
        columns = np.flatnonzero(genes)
        return x.map_blocks(
            choose_columns,
            columns,
            dtype=x.dtype,
            chunks=(x.chunks[0], (len(columns),)),
            meta=x._meta,
        )

    def quality(self, x: Any, marks: dict[str, np.ndarray]) -> tuple[pd.DataFrame, pd.DataFrame]:
        """One pass, and one more for each group of genes; sums in float32."""
        import anndata
        import pandas as pd
        import rapids_singlecell as rsc

        var = pd.DataFrame(marks, index=pd.RangeIndex(x.shape[1]).astype(str), dtype=bool)
        adata = anndata.AnnData(X=x, var=var)
        rsc.pp.calculate_qc_metrics(adata, qc_vars=list(marks))
        var = adata.var.drop(columns=list(marks)).astype({"n_cells_by_counts": np.int64})
        return adata.obs.reset_index(drop=True), var.reset_index(drop=True)

    def normalize(self, adata: Any, target_sum: float) -> None:
        """Lazy."""
        import rapids_singlecell as rsc

        adata.X = self.guard(adata.X)
        rsc.pp.normalize_total(adata, target_sum=target_sum)
        rsc.pp.log1p(adata)

    def variable(self, adata: Any, step: Variable) -> pd.DataFrame:
        """One pass; seurat_v3 takes more."""
        import rapids_singlecell as rsc

        before = set(adata.var.columns)
        rsc.pp.highly_variable_genes(
            adata, n_top_genes=step.n_top, flavor=step.flavor, batch_key=step.batch_key
        )
        return adata.var[[c for c in adata.var.columns if c not in before]].copy()

    def regress(self, adata: Any, keys: list[str]) -> None:
        """Lazy and dense."""
        import rapids_singlecell as rsc

        adata.X = self.guard(adata.X)
        rsc.pp.regress_out(adata, keys=keys)

    def scale(self, adata: Any, step: Scale) -> None:
        """One pass for mean and variance; then lazy."""
        import rapids_singlecell as rsc

        adata.X = self.guard(adata.X)
        rsc.pp.scale(adata, zero_center=step.zero_center, max_value=step.max_value)

    def pca(self, adata: Any, n_comps: int) -> Components:
        """One pass for the covariance; the scores are lazy."""
        import rapids_singlecell as rsc

        rsc.pp.pca(
            adata, n_comps=n_comps, svd_solver="covariance_eigh", mask_var=None, key_added=None
        )
        found = adata.uns["pca"]
        return Components(
            scores=self.fetch(adata.obsm["X_pca"]),
            loadings=_to_host(adata.varm["PCs"]),
            variance=_to_host(found["variance"]),
            ratio=_to_host(found["variance_ratio"]),
        )

    def neighbors(self, adata: Any, step: Neighbors, *, seed: int) -> None:
        """Exact to half a million cells, then nn_descent, unless asked for; needs cuML and cuVS.

        nn_descent knows no Manhattan distance: there, the search is always exact.
        """
        import rapids_singlecell as rsc

        exact = (
            step.algorithm == "exact"
            or step.metric == "manhattan"
            or (step.algorithm == "auto" and adata.n_obs <= BRUTE_CELLS)
        )
        rsc.pp.neighbors(
            adata,
            n_neighbors=step.n_neighbors,
            n_pcs=step.n_pcs,
            use_rep="X_pca",
            metric=step.metric,
            algorithm="brute" if exact else "nn_descent",
            rng=seed,
        )

    def umap(self, adata: Any, step: Umap, *, seed: int) -> np.ndarray:
        """CuML's."""
        import rapids_singlecell as rsc

        rsc.tl.umap(adata, min_dist=step.min_dist, spread=step.spread, rng=seed, key_added=None)
        return np.asarray(_to_host(adata.obsm["X_umap"]), np.float32)

    def leiden(self, adata: Any, step: Leiden, *, seed: int) -> np.ndarray:
        """CuGraph's, which counts levels of one run where igraph counts runs: all levels are taken.

        Raises:
            AtlasError: It put nearly every cell into a cluster of its own, as it was seen to do on
                approximate graphs.
        """
        import rapids_singlecell as rsc

        rsc.tl.leiden(
            adata,
            resolution=step.resolution,
            n_iterations=LEVELS,
            rng=seed,
            key_added="found",
        )
        clusters = numbered(adata.obs["found"])
        if (n := int(clusters.max()) + 1) > max(100, adata.n_obs // 10):
            raise AtlasError(
                f"cuGraph's Leiden made {n} clusters of {adata.n_obs} cells: use the exact search "
                "(neighbors.algorithm=exact), another seed, or the provider scanpy"
            )
        return clusters

    def rank(self, adata: Any, step: Rank, by: str) -> Any:
        """As scanpy's."""
        import rapids_singlecell as rsc

        rsc.tl.rank_genes_groups(adata, by, method="t-test", n_genes=step.n_genes)
        return adata.uns["rank_genes_groups"]


def _to_host(block: Any) -> Any:
    return block.get() if hasattr(block, "get") else np.asarray(block)


def _copied(block: Any) -> Any:
    return block.copy()
