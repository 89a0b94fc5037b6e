"""The interface of a provider, and the choice between them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from cytopave.engine.errors import MissingExtraError

if TYPE_CHECKING:
    import pandas as pd

    from cytopave.engine.atlas.parameters import Leiden, Neighbors, Rank, Scale, Umap, Variable
    from cytopave.engine.atlas.plan import ProviderName


@dataclass(frozen=True)
class Components:
    """Principal components.

    Attributes:
        scores: Of the cells; a lazy array of blocks of rows, (cells, components).
        loadings: Of the genes, (genes, components).
        variance: Explained by each component.
        ratio: Its share of the whole.
    """

    scores: Any
    loadings: np.ndarray
    variance: np.ndarray
    ratio: np.ndarray


class Provider(Protocol):
    """What a library does for an atlas.

    ``adata`` is an AnnData whose X is a lazy Dask array of blocks of rows (CSR or dense); methods
    change its X, and neither compute it as a whole nor keep it. Whoever calls them decides what
    stays in the workers' memory. The steps after the PCA get what fits one process.
    """

    @property
    def dense_bytes(self) -> int:
        """Bytes of a value once a matrix has been scaled to zero mean."""

    def place(self, x: Any) -> Any:
        """Blocks as they are read, brought to where the library works on them."""

    def fetch(self, x: Any) -> Any:
        """The way back: blocks in the host's memory."""

    def guard(self, x: Any) -> Any:
        """Blocks that may be kept in memory before the next step: its kernels get a copy."""

    def select(self, x: Any, genes: np.ndarray) -> Any:
        """The columns of some genes (bool, all genes); lazy."""

    def quality(self, x: Any, marks: dict[str, np.ndarray]) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Columns for obs and var, as scanpy's ``calculate_qc_metrics`` names them.

        X is what `place` gives, and may be kept: nothing is written into its blocks.
        """

    def normalize(self, adata: Any, target_sum: float) -> None:
        """Every cell's counts scaled to one sum, then log(1 + x)."""

    def variable(self, adata: Any, step: Variable) -> pd.DataFrame:
        """Columns for var, `highly_variable` among them; X is what the flavor wants."""

    def regress(self, adata: Any, keys: list[str]) -> None:
        """The linear effect of columns of obs taken out."""

    def scale(self, adata: Any, step: Scale) -> None:
        """Unit variance."""

    def pca(self, adata: Any, n_comps: int) -> Components:
        """Principal components of X, which is dense or CSR."""

    def neighbors(self, adata: Any, step: Neighbors, *, seed: int) -> None:
        """The graph from ``obsm["X_pca"]``: into ``obsp`` and ``uns``."""

    def umap(self, adata: Any, step: Umap, *, seed: int) -> np.ndarray:
        """An embedding of the graph, (cells, 2)."""

    def leiden(self, adata: Any, step: Leiden, *, seed: int) -> np.ndarray:
        """Cluster of each cell: 0 is the largest."""

    def rank(self, adata: Any, step: Rank, by: str) -> Any:
        """Scanpy's ``rank_genes_groups`` entry of ``uns``."""


def get_provider(name: ProviderName) -> Provider:
    """A provider by name.

    Raises:
        MissingExtraError: Its library is not installed.
    """
    if name == "rapids":
        from cytopave.engine.atlas.providers.rapids import Rapids

        if importlib.util.find_spec("rapids_singlecell") is None:
            raise MissingExtraError(
                "the provider rapids needs rapids_singlecell on the workers: install "
                "cytopave[atlas-cuda13] there, or use the provider scanpy"
            )
        return Rapids()
    from cytopave.engine.atlas.providers.scanpy import Scanpy

    return Scanpy()


def choose_provider(asked: Literal["auto", "scanpy", "rapids"], *, gpu: bool) -> ProviderName:
    """The provider by what there is.

    Args:
        asked: What was asked for.
        gpu: Whether the worker sees a GPU.

    Raises:
        MissingExtraError: rapids was asked for and is not installed, or sees no GPU.
    """
    if asked == "rapids" and not gpu:
        raise MissingExtraError(
            "the provider rapids needs an NVIDIA GPU on the workers and none is visible there: "
            "use the provider scanpy"
        )
    if asked != "auto":
        get_provider(asked)
        return asked
    found = gpu and importlib.util.find_spec("rapids_singlecell") is not None
    return "rapids" if found else "scanpy"


def numbered(labels: Any) -> np.ndarray:
    """Clusters numbered by size, 0 the largest; ties by the first cell."""
    codes = np.asarray(labels).astype(np.int64)
    _, first, inverse, sizes = np.unique(
        codes, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.lexsort((first, -sizes))
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return rank[inverse]
