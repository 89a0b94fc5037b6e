"""Simulated atlases with known clusters, written as AnnData on Zarr."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse


@dataclass(frozen=True)
class Atlas:
    """A store and what is in it."""

    path: Path
    adata: Any
    truth: np.ndarray


def simulate(
    n_cells: int, n_genes: int, *, clusters: int = 6, seed: int = 0, mean: float = 0.25
) -> tuple[Any, np.ndarray]:
    """Poisson counts (CSR, float32) around profiles that differ in a tenth of the genes."""
    rng = np.random.default_rng(seed)
    base = rng.gamma(0.6, mean / 0.6, n_genes)
    profiles = np.tile(base, (clusters, 1))
    for profile in profiles:
        chosen = rng.choice(n_genes, n_genes // 10, replace=False)
        profile[chosen] = profile[chosen] * 4 + 0.4
    truth = rng.integers(0, clusters, n_cells)
    depth = rng.lognormal(0, 0.2, n_cells)
    counts = rng.poisson(profiles[truth] * depth[:, None])
    return sparse.csr_matrix(counts.astype(np.float32)), truth


def annotated(x: Any, truth: np.ndarray | None = None) -> Any:
    """AnnData with names, a few mitochondrial genes and a batch."""
    import anndata
    import pandas as pd

    n_cells, n_genes = x.shape
    names = [f"MT-{i}" if i < n_genes // 40 else f"G{i}" for i in range(n_genes)]
    obs = pd.DataFrame(index=[f"cell{i}" for i in range(n_cells)])
    obs["batch"] = pd.Categorical(np.where(np.arange(n_cells) % 2, "b", "a"))
    if truth is not None:
        obs["truth"] = pd.Categorical(truth.astype(str))
    return anndata.AnnData(X=x, obs=obs, var=pd.DataFrame(index=names))


def write_atlas(folder: Path, adata: Any, name: str = "atlas.zarr", **kwargs: Any) -> Path:
    """The store's path."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adata.write_zarr(folder / name, **kwargs)
    return folder / name


def make_atlas(folder: Path, n_cells: int = 600, n_genes: int = 300, **options: Any) -> Atlas:
    """A simulated atlas in a store."""
    x, truth = simulate(n_cells, n_genes, **options)
    adata = annotated(x, truth)
    return Atlas(write_atlas(folder, adata), adata, truth)


def make_table(store: Path, n: int = 300, *, zarr_format: int = 3, seed: int = 0) -> Atlas:
    """A table as cytopave writes one for segmented cells: two populations by their intensities."""
    import anndata
    import pandas as pd
    import zarr
    from anndata.io import write_elem

    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 2, n)
    names = ["DAPI_mean", "CD3_mean", "CD20_mean", "DAPI_std"]
    centres = np.array([[800, 900, 60, 40], [820, 70, 1100, 42]])
    x = rng.lognormal(np.log(centres[truth]), 0.15).astype(np.float32)
    obs = pd.DataFrame({"label": np.arange(1, n + 1)}, index=[str(i) for i in range(1, n + 1)])
    obs["region"] = pd.Categorical(["cells"] * n)
    obs["area"] = rng.integers(50, 90, n)
    obs.loc[obs.index[:5], "area"] = 3
    obs["border"] = np.arange(n) % 50 == 7
    adata = anndata.AnnData(x, obs, pd.DataFrame(index=names))
    adata.obsm["spatial"] = rng.uniform(0, 100, (n, 2))
    group = zarr.open_group(str(store / "tables"), mode="a", zarr_format=zarr_format)  # type: ignore[arg-type]
    write_elem(group, "cells", adata)
    group["cells"].attrs["cytopave"] = {"fingerprint": "of the labels"}
    return Atlas(store / "tables" / "cells", adata, truth)
